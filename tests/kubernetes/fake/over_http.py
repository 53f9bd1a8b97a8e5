"""Sources and transports over real sockets, with durations short enough for tests, and HTTP servers for them."""

import asyncio
import dataclasses
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final, TypeAlias

import pytest
from aiohttp import web

from discovery import DiscoveryError, SourceDiscovery
from discovery.kubernetes import Cluster, ClusterTransport, Timings
from tests.eventually import eventually
from tests.kubernetes.fake.event_recorder import EventRecorder
from tests.kubernetes.fake.world import World, within

SHORT: Final = Timings(header_deadline=0.3, connect_timeout=0.3, credentials_deadline=1.0)

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

Serve: TypeAlias = Callable[..., Awaitable[str]]


@asynccontextmanager
async def servers() -> AsyncIterator[Serve]:
    """`await serve(handler, ssl_context, port)` starts a server that answers everything with `handler` and returns its
    URL. A server that had the port before is stopped."""
    running: dict[int, web.AppRunner] = {}

    async def start(handler: Handler, context: ssl.SSLContext | None = None, port: int = 0) -> str:
        if port:
            await running.pop(port).cleanup()
        app = web.Application()
        app.router.add_get("/{path:.*}", handler)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context).start()
        port = runner.addresses[0][1]
        running[port] = runner
        return f"{'https' if context else 'http'}://127.0.0.1:{port}"

    try:
        yield start
    finally:
        for runner in running.values():
            await runner.cleanup()


async def get(transport: ClusterTransport, path: str = "/x", **params: str) -> tuple[int, bytes]:
    async with transport.open(path, params) as response:
        return response.status, b"".join([chunk async for chunk in response.chunks])


class TokenServer:
    """Answers 401 unless the token is `wanted`."""

    def __init__(self, wanted: str) -> None:
        self.wanted = wanted
        self.asked = 0

    async def answer(self, request: web.Request) -> web.Response:
        self.asked += 1
        granted = request.headers.get("Authorization") == f"Bearer {self.wanted}"
        return web.Response(status=200 if granted else 401)


FAST: Final = Timings(
    backoff=(0.01, 0.2),
    watch_timeout=(1.0, 1.0),
    watch_slack=0.3,
    list_deadline=5.0,
    short_watch=0.05,
    rewatch_delay=0.01,
    connect_timeout=0.3,
    header_deadline=0.4,
    token_refresh=0.05,
    credentials_deadline=0.5,
)

LONG_WATCHES: Final = replace(FAST, watch_timeout=(300.0, 300.0))

PATIENT: Final = replace(
    LONG_WATCHES, list_deadline=60.0, connect_timeout=60.0, header_deadline=60.0, credentials_deadline=60.0
)
"""For servers that answer, however slow the machine is."""


@asynccontextmanager
async def watching(
    world: World, cluster: Cluster, timings: Timings = PATIENT
) -> AsyncIterator[EventRecorder]:
    transport = ClusterTransport(cluster, timings)
    async with world.recorder(transport, settle=0.0, grace=0.05, **fields_of(timings)) as recorder:
        await within(2, lambda: recorder.uids == world.uids)
        await within(2, lambda: world.api.watches == 1)
        await asyncio.sleep(2 * timings.short_watch)
        recorder.start = len(recorder.events)
        yield recorder


def fields_of(timings: Timings) -> dict[str, Any]:
    return {field.name: getattr(timings, field.name) for field in dataclasses.fields(timings)}


async def assert_refused(service: SourceDiscovery, seconds: float, *said: str) -> None:
    """No list within `seconds`; the error says so and all of that, at the first time on a machine that is not busy."""

    async def is_said() -> bool:
        with pytest.raises(DiscoveryError) as caught:
            await service.list_instances("dynamo", "decode", timeout=seconds)
        return all(words in str(caught.value) for words in said)

    await eventually(is_said)


async def assert_changes_arrive(world: World, recorder: EventRecorder, seconds: float) -> None:
    """I4: the set is right again, and goes on being right."""
    world.delete("a")
    await within(seconds, lambda: recorder.uids == world.uids)
    world.pod("late")
    await within(1, lambda: recorder.uids == world.uids)
    assert recorder.transitions() == ["-a:deleted", "+late"]
