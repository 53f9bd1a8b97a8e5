"""A sidecar in this process, on real sockets, between workers that the tests steer."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from adsum.http1.pool import ConnectionPool
from registry.disaggregation.allowed_workers import AllowedWorkers
from registry.disaggregation.connectors import Connector, NixlConnector
from registry.disaggregation.disaggregated_request import Parts
from registry.disaggregation.metrics import SidecarMetrics
from registry.disaggregation.prefill import PrefillLimits, PrefillWorkers
from registry.disaggregation.proxy import BodyLimits, ProxyPort
from tests.eventually import eventually
from tests.registry.disaggregation.workers import Blocks, Worker, serving

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}


@dataclass
class Bench:
    """A prefill worker, a decode worker, and the sidecar in front of the second."""

    prefill: Worker
    decode: Worker
    port: ProxyPort
    metrics: SidecarMetrics
    session: aiohttp.ClientSession
    blocks: Blocks

    def url(self, path: str = CHAT) -> str:
        return f"http://127.0.0.1:{self.port.port}{path}"

    def post(self, path: str = CHAT, body: Any = None, **options: Any) -> Any:
        headers = {"x-prefiller-host-port": self.prefill.address} | options.pop("headers", {})
        return self.session.post(
            self.url(path), json=BODY if body is None else body, headers=headers, **options
        )

    async def leave_once(self, met: Callable[[], object], **options: Any) -> None:
        """A client that goes away once this condition is met."""
        asking = asyncio.ensure_future(self.post(**options).__aenter__())
        await eventually(met)
        asking.cancel()
        await asyncio.wait([asking])

    async def idle(self) -> None:
        await eventually(lambda: not self.port.busy and not self.metrics.in_flight)


MakeBench = Callable[..., Any]


@asynccontextmanager
async def bench(
    connector: Connector | None = None,
    *,
    allowed: AllowedWorkers | None = None,
    limits: PrefillLimits | None = None,
    bodies: BodyLimits | None = None,
    decode_at: tuple[str, int] | None = None,
) -> AsyncIterator[Bench]:
    blocks = Blocks()
    async with AsyncExitStack() as stack:
        prefill = await stack.enter_async_context(serving(Worker(blocks)))
        decode = await stack.enter_async_context(serving(Worker(blocks)))
        metrics = SidecarMetrics(time.monotonic)
        asked = PrefillWorkers(
            allowed or AllowedWorkers(any_address=True), limits or PrefillLimits(backoff=0.01)
        )
        stack.push_async_callback(asked.aclose)
        pool = ConnectionPool(decode_at or ("127.0.0.1", decode.port), tls=None)
        stack.push_async_callback(pool.aclose)
        listening = [socket.create_server(("127.0.0.1", 0))]
        parts = Parts(pool, asked, connector or NixlConnector(), metrics)
        port = ProxyPort(parts, listening, bodies or BodyLimits())
        stack.push_async_callback(port.aclose)
        port.start()
        session = await stack.enter_async_context(aiohttp.ClientSession(auto_decompress=False))
        yield Bench(prefill, decode, port, metrics, session, blocks)
        prefill.go.set()
        decode.go.set()
        decode.tokens.set()


@pytest.fixture
async def nixl() -> AsyncIterator[Bench]:
    async with bench() as made:
        yield made


async def raw(port: int, request: bytes, until: Callable[[bytes], bool] = lambda _: False) -> bytes:
    """What the port sends back, until it closes or `until` says so of all that came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    received = b""
    try:
        while not until(received) and (data := await asyncio.wait_for(reader.read(65536), 20)):
            received += data
    finally:
        writer.close()
    return received
