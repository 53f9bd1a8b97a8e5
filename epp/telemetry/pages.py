"""The pages on the metrics port: /metrics, /healthz, /debug/endpoints."""

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from aiohttp import web
from prometheus_client.registry import Collector

from epp.endpoints.endpoint import EndpointPool
from epp.telemetry.exposition import Exposition, form_of


def application(
    counted: Collector, looked_up: Collector, describe: Callable[[], Mapping[str, Any]]
) -> web.Application:
    """`counted` may be read in any thread, `looked_up` only here; `describe` is what /debug/endpoints shows."""

    exposition = Exposition(counted, looked_up)

    async def metrics(request: web.Request) -> web.StreamResponse:
        form = form_of(request.headers.get("Accept", ""))
        return await _sent(request, await exposition.page(form), form.content_type)

    async def health(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def endpoints(_: web.Request) -> web.Response:
        return web.json_response(describe())

    async def index(_: web.Request) -> web.Response:
        return web.Response(text="/metrics\n/healthz\n/debug/endpoints\n")

    app = web.Application()
    app.router.add_get("/", index)
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/healthz", health)
    app.router.add_get("/debug/endpoints", endpoints)
    return app


_SLICE: Final = 64 * 1024
"""Bytes that are given to a connection at once: who does not read has no more of the page to itself."""
PATIENCE: Final = 30.0
"""Seconds in which a page must be taken."""


async def _sent(request: web.Request, body: bytes, content_type: str) -> web.StreamResponse:
    headers = {"Content-Type": content_type}
    if len(body) <= _SLICE or request.method == "HEAD":
        return web.Response(body=body, headers=headers)
    answer = web.StreamResponse(headers=headers)
    answer.content_length = len(body)
    view = memoryview(body)
    try:
        async with asyncio.timeout(PATIENCE):
            await answer.prepare(request)
            for at in range(0, len(body), _SLICE):
                await answer.write(view[at : at + _SLICE])
            await answer.write_eof()
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
    return answer


def describe(pool: EndpointPool, saturation: float) -> dict[str, Any]:
    """What the picker knows of each endpoint right now; null is "not known yet". `age` is in seconds."""
    age = pool.age
    seen = np.isfinite(age)
    columns = {
        "inflight": pool.inflight,
        "waiting": np.where(seen, pool.waiting, np.nan),
        "running": np.where(seen, pool.running, np.nan),
        "kv_usage": np.where(seen, pool.kv_usage, np.nan),
        "age": age,
    }
    return {
        "saturation": _finite(saturation),
        "endpoints": [
            {
                "id": endpoint.id,
                "destination": endpoint.destination,
                "reachable": endpoint.reachable,
                "models": sorted(endpoint.models),
                **{name: _finite(column[index]) for name, column in columns.items()},
            }
            for index, endpoint in enumerate(pool.endpoints)
        ],
    }


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
