"""Serves /healthz, /readyz and /metrics."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import anyio.to_thread
from aiohttp import web
from prometheus_client import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector


def add_routes(
    app: web.Application,
    counters: Collector,
    collect_now: Callable[[], Awaitable[Sequence[Collector]]],
    unready_reason: Callable[[], str],
) -> None:
    """`collect_now` is awaited for each scrape of /metrics. `unready_reason` returns "" if the process is ready."""

    async def health(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_: web.Request) -> web.Response:
        reason = unready_reason()
        return web.Response(status=503 if reason else 200, text=f"{reason or 'ready'}\n")

    async def metrics(request: web.Request) -> web.Response:
        encode, content_type = _encoder(request.headers.get("Accept", ""))
        collectors = [*await collect_now(), counters]
        page = _MetricFamilies([metric for collector in collectors for metric in collector.collect()])
        body = await anyio.to_thread.run_sync(encode, page)
        return web.Response(body=body, headers={"Content-Type": content_type})

    app.router.add_get("/healthz", health)
    app.router.add_get("/readyz", ready)
    app.router.add_get("/metrics", metrics)


def _encoder(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):  # the client asks for a malformed version
        return choose_encoder("")


@dataclass(frozen=True, slots=True)
class _MetricFamilies(Collector):
    metrics: Sequence[Metric]

    def collect(self) -> Sequence[Metric]:
        return self.metrics
