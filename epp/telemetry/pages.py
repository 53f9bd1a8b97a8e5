"""The pages of the metrics port: /metrics, /healthz, /status, /debug/endpoints.

The metrics page is rendered once for all concurrent requests, and cached for a moment: one of 33,000 lines takes half a second
and 5 MB; twenty concurrent requests would delay picks by seconds.
"""

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, TypeAlias

import anyio.to_thread
import numpy as np
from aiohttp import web
from prometheus_client import Metric, exposition
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from adsum.web.program_page import ProgramPage
from epp.endpoints.endpoint import Endpoint, EndpointPool
from epp.scheduling.plugin import PredictingProducer

CACHE_FACTOR: Final = 10.0
"""A page is cached this many times as long as it took to render: requests use a tenth of a core at most."""
MAX_CACHE_TIME: Final = 5.0
"""Seconds."""


@dataclass(frozen=True, slots=True)
class ExpositionFormat:
    """One syntax of the page, with its encoder."""

    content_type: str
    encode: Callable[[Collector], bytes]


TEXT_FORMAT: Final = ExpositionFormat(exposition.CONTENT_TYPE_PLAIN_0_0_4, exposition.generate_latest)
OPEN_METRICS: Final = ExpositionFormat(openmetrics.CONTENT_TYPE_LATEST, openmetrics.generate_latest)


def negotiate_format(accept: str) -> ExpositionFormat:
    """OpenMetrics 1 if the Accept header names it, else the text format 0.0.4, which every scraper reads.

    Quality values are ignored. There are only two formats, since a page is cached for each.
    """
    # bounded: a header field as aiohttp bounds it: 8,190 bytes
    for one in accept.split(","):
        # bounded: a part of the same
        kind, *parameters = (part.strip().lower() for part in one.split(";"))
        versions = [part.partition("=")[2].strip(' "') for part in parameters if part.startswith("version")]
        if kind == "application/openmetrics-text" and (not versions or versions[0].startswith("1.")):
            return OPEN_METRICS
    return TEXT_FORMAT


Merge = Callable[[list[Metric]], Awaitable[Collector]]
"""Puts the metrics of several processes together; it is given the gauges of this one."""
Status: TypeAlias = Mapping[str, Any] | Awaitable[Mapping[str, Any]]
"""Other processes have to be asked for their part of it."""


class Exposition:
    """`counters` may be read in any thread, `gauges` only on the event loop. `merge` None: there is one process."""

    def __init__(self, counters: Collector, gauges: Collector, merge: Merge | None = None) -> None:
        self._counters = counters
        self._gauges = gauges
        self._merge = merge
        self._rendering = asyncio.Lock()
        self._cached: dict[ExpositionFormat, bytes] = {}

    async def page(self, format: ExpositionFormat) -> bytes:
        """The page, new or cached."""
        cached = self._cached.get(format)
        if cached is not None:
            return cached
        async with self._rendering:
            cached = self._cached.get(format)
            return cached if cached is not None else await self._render(format)

    async def _render(self, format: ExpositionFormat) -> bytes:
        started = time.monotonic()
        gauges = list(self._gauges.collect())
        page = _RenderedPage(self._counters, gauges) if self._merge is None else await self._merge(gauges)
        body = self._cached[format] = await anyio.to_thread.run_sync(format.encode, page)
        pause = min(CACHE_FACTOR * (time.monotonic() - started), MAX_CACHE_TIME)
        asyncio.get_running_loop().call_later(pause, self._cached.pop, format, None)
        return body


@dataclass(frozen=True, slots=True)
class _RenderedPage(Collector):
    counters: Collector
    gauges: Sequence[Metric]

    def collect(self) -> Iterator[Metric]:
        yield from self.gauges
        yield from self.counters.collect()


def application(
    counters: Collector,
    gauges: Collector,
    describe: Callable[[], Mapping[str, Any]],
    describe_status: Callable[[], Status] = dict,
    page: ProgramPage | None = None,
    merge: Merge | None = None,
) -> web.Application:
    """`merge`: as of `Exposition`. `counters` may be read in any thread, `gauges` only on the event loop. `describe` returns
    /debug/endpoints, `describe_status` /status. `page`: what browsers get at /.
    """

    exposition = Exposition(counters, gauges, merge)

    async def metrics(request: web.Request) -> web.StreamResponse:
        format = negotiate_format(request.headers.get("Accept", ""))
        return await send_page(request, await exposition.page(format), format.content_type)

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    add_debug_routes(app, describe, describe_status, page)
    return app


def add_debug_routes(
    app: web.Application,
    describe: Callable[[], Mapping[str, Any]],
    describe_status: Callable[[], Status],
    page: ProgramPage | None,
) -> None:
    """The routes that the metrics port and that of --debug-address both serve."""

    async def health(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def endpoints(_: web.Request) -> web.Response:
        return _json_line(describe())

    async def status(_: web.Request) -> web.Response:
        found = describe_status()
        return _json_line(await found if isinstance(found, Awaitable) else found)

    app.router.add_get("/healthz", health)
    app.router.add_get("/status", status)
    app.router.add_get("/debug/endpoints", endpoints)
    if page is not None:
        page.add_routes(app)


def _json_line(document: Mapping[str, Any]) -> web.Response:
    return web.Response(text=json.dumps(document) + "\n", content_type="application/json")


_WRITE_SIZE: Final = 64 * 1024
"""Bytes per write: a client that does not read holds no more of the page than this."""
SEND_TIMEOUT: Final = 30.0
"""Seconds for a client to read a page."""


async def send_page(
    request: web.Request, body: bytes, content_type: str, timeout: float = SEND_TIMEOUT
) -> web.StreamResponse:
    """Writes a large page in parts; a client that does not read it within `timeout` seconds is cut off."""
    headers = {"Content-Type": content_type}
    if len(body) <= _WRITE_SIZE or request.method == "HEAD":
        return web.Response(body=body, headers=headers)
    answer = web.StreamResponse(headers=headers)
    answer.content_length = len(body)
    view = memoryview(body)
    try:
        async with asyncio.timeout(timeout):
            await answer.prepare(request)
            for at in range(0, len(body), _WRITE_SIZE):
                await answer.write(view[at : at + _WRITE_SIZE])
            await answer.write_eof()
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
    return answer


def describe(
    pool: EndpointPool,
    saturation: float,
    engine: Callable[[Endpoint], str | None] = attrgetter("engine"),
    learnt: PredictingProducer | None = None,
) -> dict[str, Any]:
    """The state of each endpoint; null means not known yet. `age`: of its numbers, in seconds."""
    age = pool.age
    seen = np.isfinite(age)
    reachable = pool.reachable
    columns = {
        "inflight": pool.inflight,
        "peer_inflight": pool.peer_inflight,
        "waiting": np.where(seen, pool.waiting, np.nan),
        "running": np.where(seen, pool.running, np.nan),
        "kv_usage": np.where(seen, pool.kv_usage, np.nan),
        "age": age,
    }
    return {
        "saturation": _finite(saturation),
        **({} if learnt is None else {"learnt": learnt.learnt()}),
        "endpoints": [
            {
                "id": endpoint.id,
                "destination": endpoint.destination,
                "reachable": bool(reachable[index]),
                "models": sorted(endpoint.models or {model.id for model in endpoint.listed_models}),
                "engine": engine(endpoint),
                "ignored": endpoint.ignored,
                **{name: _finite(column[index]) for name, column in columns.items()},
                **({} if learnt is None else {"learnt": learnt.learnt_of(endpoint)}),
            }
            for index, endpoint in enumerate(pool.endpoints)
        ],
    }


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
