"""The pages on the metrics port: /metrics, /healthz, /debug/endpoints."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from epp.endpoint import EndpointPool


def application(registry: CollectorRegistry, describe: Callable[[], Mapping[str, Any]]) -> web.Application:
    """`describe` is what /debug/endpoints shows."""

    async def metrics(request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(registry), headers={"Content-Type": content_type})

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


def describe(pool: EndpointPool, saturation: float) -> dict[str, Any]:
    """What the picker knows of each endpoint right now; null is "not known yet". `age` is in seconds."""
    columns = {
        "inflight": pool.inflight,
        "waiting": pool.waiting,
        "running": pool.running,
        "kv_usage": pool.kv_usage,
        "age": pool.age,
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
