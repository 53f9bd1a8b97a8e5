"""A worker that publishes KV events over ZeroMQ as vLLM and SGLang do, with a replay, and gives the tokens of prompts.

A token is a byte of the prompt. Its sockets are bound as those of the engines; `restart` begins another life at the same ports.
"""

import asyncio
import contextlib
import json
from collections import deque
from typing import Any, Self

import msgspec
import zmq
import zmq.asyncio
from aiohttp import web

from examples.simulator.kv_messages import AllBlocksCleared, removed, stored, vllm

SIZE = 16
_END = b"\xff" * 8


class PublishingWorker:
    """An async context manager. `replays`: it has a socket for it. `topic_in_replay`: False as in vLLM before 0.26.

    `keeps`: batches for a replay. `form`: how it says where it publishes: `vllm`, `sglang` or `none`. `encode`: batches.
    """

    def __init__(
        self,
        *,
        form: str = "vllm",
        replays: bool = True,
        topic_in_replay: bool = True,
        encode: Any = vllm,
        keeps: int = 10_000,
    ) -> None:
        self.keeps = keeps
        self.form = form
        self.replays = replays
        self.topic_in_replay = topic_in_replay
        self.encode = encode
        self.ports: list[int] = [0, 0, 0]
        self.port = 0
        self.rendered: list[str] = []
        """The paths at which it was asked for tokens."""
        self.token_paths = {"/v1/completions/render", "/tokenize"}
        self.token_delay = 0.0
        self.asked = 0
        """How often it was asked where it publishes."""
        self.locked = False
        """It wants a key, as vLLM with `--api-key`."""
        self.refuses: tuple[int, str] | None = None
        """Status and text of its answer in place of tokens, as for a request that is wrong."""
        self._now = 1.0
        self.sleeps = False
        """vLLM's sleep: blocks are gone, and the batch that says so waits for the next step."""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/{path:kv_event_sources|server_info}", self._where)
        app.router.add_get("/is_sleeping", self._is_sleeping)
        app.router.add_post("/{path:.*}", self._tokens)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]
        self.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        await self.end()

    def begin(self) -> None:
        """A life of its process."""
        self._context = zmq.asyncio.Context()
        self._events, self._replay = self._context.socket(zmq.PUB), self._context.socket(zmq.ROUTER)
        self._loads = self._context.socket(zmq.PUB)
        for at, socket in enumerate((self._events, self._replay, self._loads)):
            socket.setsockopt(zmq.LINGER, 0)
            socket.bind(f"tcp://127.0.0.1:{self.ports[at] or '*'}")
            self.ports[at] = int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
        self._number = 0
        self.kept: deque[tuple[int, bytes]] = deque(maxlen=self.keeps)
        self._task = asyncio.create_task(self._answer_replays())

    async def end(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._context.destroy(linger=0)

    async def restart(self) -> None:
        await self.end()
        self.begin()

    async def publish(self, *events: Any, lost: bool = False) -> None:
        self._now += 1.0
        number, payload = self._number, self.encode(*events, ts=self._now)
        self._number += 1
        self.kept.append((number, payload))
        if not lost:
            await self._events.send_multipart([b"", number.to_bytes(8, "big"), payload])

    async def push_load(self, *numbers: Any) -> None:
        """As SGLang: running, waiting, tokens, capacity, rank and more."""
        payload = msgspec.msgpack.encode(["LoadStat", *numbers])
        await self._loads.send_multipart([b"load", bytes(8), payload])

    async def hold(self, prompt: str) -> None:
        """It computed all full blocks of the prompt."""
        names, tokens = self.names(prompt), list(prompt.encode())
        await self.publish(stored(names, tokens[: len(names) * SIZE]))

    async def drop(self, prompt: str, *, lost: bool = False) -> None:
        await self.publish(removed(*self.names(prompt)), lost=lost)

    async def clear(self) -> None:
        await self.publish(AllBlocksCleared())

    @staticmethod
    def names(prompt: str) -> list[int]:
        return [
            hash(prompt[: end + SIZE]) & 0xFFFF_FFFF_FFFF for end in range(0, len(prompt) - SIZE + 1, SIZE)
        ]

    async def _answer_replays(self) -> None:
        while True:
            client, _, first = await self._replay.recv_multipart()
            topic = [b""] if self.topic_in_replay else []
            for number, payload in list(self.kept):
                if number >= int.from_bytes(first, "big"):
                    await self._replay.send_multipart(
                        [client, b"", *topic, number.to_bytes(8, "big"), payload]
                    )
            await self._replay.send_multipart([client, b"", *topic, _END, b""])

    async def _is_sleeping(self, request: web.Request) -> web.Response:
        return web.json_response({"is_sleeping": self.sleeps})

    async def _where(self, request: web.Request) -> web.Response:
        self.asked += 1
        if self.locked:
            return web.json_response({"error": "Unauthorized"}, status=401)
        events, replay, loads = self.ports
        if self.form == "vllm" and request.path == "/kv_event_sources":
            source = {
                "publisher": "zmq",
                "endpoint": f"tcp://*:{events}",
                "topic": "",
                "enable_kv_cache_events": True,
            }
            if self.replays:
                source["replay_endpoint"] = f"tcp://*:{replay}"
            return web.json_response({"0": source})
        if self.form == "sglang" and request.path == "/server_info":
            source = {
                "publisher": "zmq",
                "endpoint_host": "*",
                "endpoint_port_base": events,
                "dp_size": 1,
                "topic": "",
                "load_endpoint_port_base": loads,
                "load_topic": "load",
            }
            if self.replays:
                source["replay_endpoint_port_base"] = replay
            return web.json_response({"kv_events": source | {"block_size": SIZE}})
        return web.json_response({}, status=404)

    async def _tokens(self, request: web.Request) -> web.Response:
        if request.path not in self.token_paths:
            return web.json_response({}, status=404)
        self.rendered.append(request.path)
        await asyncio.sleep(self.token_delay)
        if self.refuses is not None:
            status, text = self.refuses
            return web.Response(status=status, text=text)
        tokens = list(json.loads(await request.read())["prompt"].encode())
        if request.path == "/tokenize":
            return web.json_response({"count": len(tokens), "max_model_len": 4096, "tokens": tokens})
        return web.json_response([{"request_id": "r", "token_ids": tokens, "sampling_params": {}}])
