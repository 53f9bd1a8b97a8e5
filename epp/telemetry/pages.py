"""The pages of the metrics port: /metrics, /healthz, /status, /debug/endpoints."""

import asyncio
import json
import math
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Final

import numpy as np
from aiohttp import web
from prometheus_client.registry import Collector

from adsum.web.program_page import ProgramPage
from epp.endpoints.endpoint import Endpoint, EndpointPool
from epp.scheduling.plugin import PredictingProducer
from epp.telemetry.exposition import Exposition, negotiate_format


def application(
    counters: Collector,
    gauges: Collector,
    describe: Callable[[], Mapping[str, Any]],
    describe_status: Callable[[], Mapping[str, Any]] = dict,
    page: ProgramPage | None = None,
) -> web.Application:
    """`counters` may be read in any thread, `gauges` only on the event loop. `describe` returns /debug/endpoints,
    `describe_status` /status. `page`: what browsers get at /.
    """

    exposition = Exposition(counters, gauges)

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
    describe_status: Callable[[], Mapping[str, Any]],
    page: ProgramPage | None,
) -> None:
    """What both the metrics port and that of --debug-address serve."""

    async def health(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def endpoints(_: web.Request) -> web.Response:
        return _json_line(describe())

    async def status(_: web.Request) -> web.Response:
        return _json_line(describe_status())

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
