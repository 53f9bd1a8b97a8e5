"""Opens the dispatcher's port, with TLS if there is a certificate, and those of `http.health_address` and `http.debug_address`."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import anyio.to_thread
from aiohttp import web
from prometheus_client import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from adsum.addresses import split_authority
from adsum.config.problems import ConfigError
from adsum.serving.pages import ConnectionLimits, add_probes, served_at
from adsum.serving.reloaded_tls import reloaded_tls
from adsum.serving.sockets import connection_limit
from adsum.web.access import Access, token_file
from adsum.web.debug_port import DebugPort
from dispatcher.broker.contract.message import MAX_PAYLOAD
from dispatcher.config.config_file import HttpConfig
from dispatcher.web.queue_pages import GUARDED, QueuePages

_LIMITS: Final = ConnectionLimits(max_connections=2048)
"""A client that waits for a result holds a connection."""


def waiting_limit() -> int:
    """Clients that may wait for results at once: a quarter of the connections is left to those that do not wait."""
    return connection_limit(_LIMITS.max_connections) * 3 // 4


class PortAddresses(NamedTuple):
    """`host:port` of each; None: there is none."""

    http: str
    health: str | None = None
    debug: str | None = None


AddRoutes = Callable[[web.Application], None]


@asynccontextmanager
async def serve_pages(
    config: HttpConfig, pages: QueuePages, add_health: AddRoutes, add_door: AddRoutes
) -> AsyncIterator[PortAddresses]:
    """The first port serves all, that of the probes what `add_health` adds. Raises ListenError and ConfigError."""
    token = _token(config)
    async with AsyncExitStack() as stack:
        app = web.Application(client_max_size=MAX_PAYLOAD)
        pages.add_routes(app, Access(GUARDED, token))
        add_health(app)
        add_door(app)
        tls = None
        if config.tls_cert_file is not None and config.tls_key_file is not None:
            files = Path(config.tls_cert_file), Path(config.tls_key_file)
            try:
                tls = await stack.enter_async_context(reloaded_tls(*files))
            except ValueError as error:
                raise ConfigError("http.tls_cert_file", str(error)) from error
        setting = "http.host and http.port"
        opened = served_at(config.host, config.port, app, "the front door", setting, _LIMITS, tls)
        http = await stack.enter_async_context(opened)
        health = debug = None
        if config.health_address is not None:
            probed = web.Application()
            add_health(probed)
            host, port = split_authority(config.health_address, min_port=0)
            opened = served_at(host, port, probed, "the health port", "http.health_address")
            health = await stack.enter_async_context(opened)
        if config.debug_address is not None:
            shown = DebugPort(
                address=config.debug_address,
                guarded=GUARDED,
                token=token,
                address_setting="http.debug_address",
                token_setting="http.debug_token_file",  # noqa: S106  # the name of a field
                limits=_LIMITS,
            )
            debug = await stack.enter_async_context(
                shown.served(partial(pages.add_routes, web.Application()))
            )
        yield PortAddresses(http, health, debug)


def _token(config: HttpConfig) -> Callable[[], str] | None:
    if config.debug_token_file is None:
        return None
    try:
        return token_file(Path(config.debug_token_file), "the file")
    except ValueError as error:
        raise ConfigError("http.debug_token_file", str(error)) from error


def add_status_routes(
    app: web.Application,
    counters: Collector,
    collect_now: Callable[[], Awaitable[Sequence[Collector]]],
    unready_reason: Callable[[], str],
) -> None:
    """`collect_now` is awaited for each scrape of /metrics. `unready_reason` returns "" if the process is ready."""

    async def metrics(request: web.Request) -> web.Response:
        encode, content_type = _encoder(request.headers.get("Accept", ""))
        collectors = [*await collect_now(), counters]
        page = _MetricFamilies([metric for collector in collectors for metric in collector.collect()])
        body = await anyio.to_thread.run_sync(encode, page)
        return web.Response(body=body, headers={"Content-Type": content_type})

    add_probes(app, unready_reason)
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
