"""Hands KV caches from one simulated worker to another, in the forms of vLLM's NIXL connector, SGLang and TensorRT-LLM.

A worker that computed a prompt for another keeps its blocks under a name. The other one fetches them with one POST, which takes as
long as the transfer, and names whose they are. What stands for NIXL's side channel, and for SGLang's bootstrap server, is that path.
"""

import asyncio
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import aiohttp
import msgspec
from aiohttp import web

from examples.simulator.pacing import Pacer

PATH: Final = "/kv_transfer"
_SILENT: Final = 5.0
"""Seconds beyond a transfer's own after which the other worker counts as dead: vLLM waits as long for a NIXL handshake."""
_BOOTSTRAP_SECONDS: Final = 300.0
"""SGLang's limit for the two legs of a request to meet."""


@dataclass(frozen=True, slots=True)
class Handover:
    """What a request's body says of the KV cache of its prompt. `hold`: compute it, and keep it under `name` for another worker.
    Otherwise fetch it from `host` and `port`. `together`: both legs run at once and wait for each other.
    """

    form: Literal["nixl", "sglang", "trtllm"]
    name: str
    hold: bool
    host: str = ""
    port: int = 0
    engine_id: str = ""
    together: bool = False


class HandoverFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a body in which the three forms tell it."""

    kv_transfer_params: dict[str, Any] | None = None
    bootstrap_host: str | None = None
    bootstrap_port: int | None = None
    bootstrap_room: int | None = None
    disaggregated_params: dict[str, Any] | None = None
    prompt_token_ids: list[int] | None = None

    def handover(self, role: str) -> Handover | None:
        """None: the worker computes the prompt for itself. ValueError for what the other worker cannot have meant."""
        if self.kv_transfer_params:
            return _nixl(self.kv_transfer_params)
        if self.bootstrap_room is not None:
            if role not in ("prefill", "decode"):
                raise ValueError("bootstrap_room needs a worker with --role prefill or --role decode")
            host, port = self.bootstrap_host or "", self.bootstrap_port or 0
            name = str(self.bootstrap_room)
            return Handover("sglang", name, role == "prefill", host, port, together=True)
        return _trtllm(self.disaggregated_params) if self.disaggregated_params else None


def _nixl(given: Mapping[str, Any]) -> Handover | None:
    if given.get("do_remote_decode"):
        return Handover("nixl", uuid.uuid4().hex, hold=True)
    keys = ("remote_request_id", "remote_host", "remote_port", "remote_engine_id", "remote_block_ids")
    if not given.get("do_remote_prefill") or not all(given.get(key) for key in keys):
        return None  # as vLLM, which then computes it
    name, host, port, engine_id = [given[key] for key in keys[:4]]
    return Handover("nixl", str(name), False, str(host), int(port), str(engine_id))


def _trtllm(given: Mapping[str, Any]) -> Handover | None:
    kind, name = given.get("request_type"), given.get("disagg_request_id")
    if kind == "context_only":
        return Handover("trtllm", str(name or uuid.uuid4().hex), hold=True)
    if kind != "generation_only":
        return None
    host, colon, port = str(given.get("ctx_info_endpoint", "")).rpartition(":")
    if not colon or not port.isdecimal() or not name:
        raise ValueError("generation_only needs disagg_request_id and ctx_info_endpoint, HOST:PORT")
    return Handover("trtllm", str(name), False, host, int(port))


class TransferFailedError(Exception):
    """The KV cache of a prompt could not be fetched."""


@dataclass(slots=True, eq=False)
class _Held:
    key: int
    tokens: int
    lease: asyncio.TimerHandle
    fetched: asyncio.Event = field(default_factory=asyncio.Event)
    in_transfer: bool = False


@dataclass(frozen=True, slots=True)
class TransferTimes:
    """In simulated seconds. `lease`: how long blocks are kept for a worker that does not fetch them. `recompute`: a prompt whose
    KV cache cannot be fetched is computed, as with vLLM's `kv_load_failure_policy`; otherwise its request fails.
    """

    seconds: float = 0.02
    token_seconds: float = 0.00001
    lease: float = 30.0
    recompute: bool = False

    def of(self, tokens: int) -> float:
        return self.seconds + self.token_seconds * tokens


class KvHandovers:
    """The KV caches that one worker keeps for others, and its way to those that others keep. `address`: where others fetch them.

    `engine_id`: another one for each life of the process, so that a worker which started again is not taken for the former one.
    """

    def __init__(self, pacer: Pacer, times: TransferTimes, block_size: int, role: str = "both") -> None:
        self.role = role
        self.times = times
        self.address = ("127.0.0.1", 0)
        self.engine_id = uuid.uuid4().hex
        self._pacer = pacer
        self._block_size = block_size
        # bounded: by the KV blocks, which each of them holds
        self._held: dict[str, _Held] = {}
        self._more = asyncio.Event()

    def hold(self, handover: Handover, key: int, tokens: int) -> dict[str, Any]:
        """Keep the blocks of an ended request; what its answer says of them."""
        name = handover.name
        lease = asyncio.get_running_loop().call_later(
            self._pacer.real(_BOOTSTRAP_SECONDS if handover.together else self.times.lease),
            self._expire,
            name,
        )
        self._held[name] = _Held(key, tokens, lease)
        self._more.set()
        self._more = asyncio.Event()
        host, port = self.address
        if handover.form == "trtllm":
            return {
                "request_type": "context_only",
                "ctx_request_id": int(name) if name.isdecimal() else name,
                "disagg_request_id": int(name) if name.isdecimal() else name,
                "ctx_dp_rank": 0,
                "ctx_info_endpoint": f"{host}:{port}",
            }
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(range(-(-tokens // self._block_size)))],
            "remote_engine_id": self.engine_id,
            "remote_request_id": name,
            "remote_host": host,
            "remote_port": port,
            "tp_size": 1,
            "remote_num_tokens": tokens,
        }

    async def wait_fetched(self, handover: Handover) -> None:
        """Where both legs run at once, that of prefill ends with the transfer."""
        held = self._held.get(handover.name)
        if held is not None:
            await held.fetched.wait()

    async def serve(self, request: web.Request) -> web.Response:
        """Answers once the blocks are over, 404 if nobody knows of them."""
        asked = await request.json()
        if asked.get("engine_id") not in ("", self.engine_id):
            return web.Response(status=404, text="another process")
        name = str(asked.get("name"))
        while name not in self._held and asked.get("together"):
            await self._more.wait()
        held = self._held.get(name)
        if held is None or held.in_transfer:
            return web.Response(status=404, text="there are no such blocks")
        held.in_transfer = True
        held.lease.cancel()
        try:
            await self._pacer.pass_seconds(self.times.of(held.tokens))
        except asyncio.CancelledError:  # the other one went away meanwhile: it may try again
            held.in_transfer = False
            held.lease = asyncio.get_running_loop().call_later(
                self._pacer.real(self.times.lease), self._expire, name
            )
            raise
        self._let_go(name)
        return web.json_response({"tokens": held.tokens})

    async def fetch(self, handover: Handover, tokens: int) -> int:
        """The tokens whose KV cache is here now; 0: none, so the prompt is to be computed. TransferFailedError: it is to fail."""
        asked = {
            "name": handover.name, "engine_id": handover.engine_id, "together": handover.together
        }  # fmt: skip
        seconds = self._pacer.real(self.times.of(tokens)) + _SILENT
        timeout = aiohttp.ClientTimeout(_BOOTSTRAP_SECONDS if handover.together else seconds)
        url = f"http://{handover.host}:{handover.port}{PATH}"
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.post(url, json=asked) as response,
            ):
                response.raise_for_status()
                return int((await response.json())["tokens"])
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
            self._pacer.totals.failed_transfers += 1
            if self.times.recompute:
                return 0
            where = f"{handover.host}:{handover.port}"
            message = f"the KV cache of the prompt cannot be fetched from {where}: {error!r}"
            raise TransferFailedError(message) from error

    def _expire(self, name: str) -> None:
        self._pacer.totals.expired_requests += 1
        self._let_go(name)

    def _let_go(self, name: str) -> None:
        held = self._held.pop(name)
        self._pacer.release(held.key)
        held.fetched.set()
