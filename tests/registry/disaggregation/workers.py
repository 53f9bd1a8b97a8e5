"""Prefill and decode workers that speak each engine's contract over real sockets, and know which blocks are still held.

`python -m tests.registry.disaggregation.workers` is one as a process, which a test may kill or stop.
"""

import asyncio
import json
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

import registry
from tests.started import next_line, started
from tests.warm_python import WARM_PYTHON

ROOT = Path(__file__).parents[3]
CACHED = 7


@dataclass
class Seen:
    """A request as a worker got it."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class Blocks:
    """What prefill workers hold for decode workers: vLLM's `remote_block_ids` by request."""

    held: dict[str, list[int]] = field(default_factory=dict)
    freed: list[str] = field(default_factory=list)

    def free(self, of: str) -> None:
        if self.held.pop(of, None) is not None:
            self.freed.append(of)


class Worker:
    """`go` holds every answer back until it is set, `tokens` those of a stream after the first. `status`: what it answers."""

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        self.seen: list[Seen] = []
        self.cancelled = 0
        self.go = asyncio.Event()
        self.go.set()
        self.tokens = asyncio.Event()
        self.tokens.set()
        self.prefills = asyncio.Event()
        self.prefills.set()
        self.statuses: list[int] = []
        self.answer: dict[str, Any] | bytes | None = None
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/seen":
            return web.json_response([one.path for one in self.seen])
        raw = await request.read()
        try:
            body = json.loads(raw)
        except ValueError:
            body = {}
        self.seen.append(
            Seen(request.path_qs, {name.lower(): value for name, value in request.headers.items()}, body)
        )
        try:
            return await self._answer(request, body)
        except asyncio.CancelledError:
            self.cancelled += 1
            transfer = body.get("kv_transfer_params") or {}
            if transfer.get("do_remote_prefill"):  # vLLM frees blocks that it does not fetch
                self.blocks.free(transfer["remote_request_id"])
            raise

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if request.path == "/hello":
            return web.Response(
                body=b"hello\x00\xff", headers={"x-of-worker": "yes", "content-type": "text/x"}
            )
        await self.go.wait()
        if self.statuses and (status := self.statuses.pop(0)) != 200:
            return web.json_response({"error": {"message": f"status {status}"}}, status=status)
        if isinstance(self.answer, bytes):
            return web.Response(body=self.answer, content_type="application/json")
        if self.answer is not None:
            return web.json_response(self.answer)
        transfer = body.get("kv_transfer_params") or {}
        if transfer.get("do_remote_decode"):
            await self.prefills.wait()
            return self._hold(request)
        if transfer.get("do_remote_prefill"):
            self.blocks.free(transfer["remote_request_id"])
        return await self._stream(request) if body.get("stream") else web.json_response(_whole())

    def _hold(self, request: web.Request) -> web.Response:
        name = request.headers["x-request-id"]
        self.blocks.held[name] = [3, 1, 4]
        transfer = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [[3, 1, 4]],
            "remote_engine_id": "prefill",
            "remote_request_id": name,
            "remote_host": "127.0.0.1",
            "remote_port": 5600,
            "tp_size": 1,
            "of_a_later_version": 12345678901234567890,
        }
        return web.json_response(_whole(CACHED) | {"kv_transfer_params": transfer})

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for number in range(4):
            await response.write(f'data: {{"id": {number},  "choices":[]}}\n\n'.encode())
            if number == 0:
                await self.tokens.wait()
        usage = {"prompt_tokens": 9, "total_tokens": 13, "prompt_tokens_details": None}
        await response.write(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DO".encode())
        await response.write(b"NE]\n\n")
        return response


def _whole(cached: int | None = None) -> dict[str, Any]:
    details = None if cached is None else {"cached_tokens": cached}
    return {
        "id": "x",
        "choices": [{"index": 0, "finish_reason": "length", "text": "a"}],
        "usage": {"prompt_tokens": 9, "total_tokens": 13, "prompt_tokens_details": details},
    }


@asynccontextmanager
async def serving(worker: Worker, port: int = 0) -> AsyncIterator[Worker]:
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{rest:.*}", worker.handle)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    worker.port = runner.addresses[0][1]
    try:
        yield worker
    finally:
        await runner.cleanup()


@asynccontextmanager
async def worker_process(*, held: bool = False, url: str = "") -> AsyncIterator[tuple[Process, int]]:
    """A worker that a test may kill, and its port. `held`: it computes a prompt for ever, and no token after the first.
    `url`: where it registers as `prod/prefill`.
    """
    arguments = [url, *(["held"] if held else [])]
    command = (WARM_PYTHON, "-m", "tests.registry.disaggregation.workers", *arguments)
    async with started(*command, cwd=ROOT) as process:
        yield process, int(await next_line(process))


async def _main(url: str, *, held: bool) -> None:
    worker = Worker(Blocks())
    if held:
        worker.tokens.clear()
        worker.prefills.clear()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(serving(worker))
        if url:
            opened = registry.open(url).register_instance("prod", "prefill")
            (await stack.enter_async_context(opened)).set_ready("ready")
        print(worker.port, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], held="held" in sys.argv))
