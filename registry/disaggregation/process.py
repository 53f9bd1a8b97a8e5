"""Runs `registry pd-sidecar`: from its flags to the end of its drain."""

import argparse
import asyncio
import logging
import os
import ssl
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from aiohttp import web

import discovery
from adsum.addresses import authority
from adsum.http1.pool import ConnectionPool
from adsum.logs import print_ready
from adsum.serving.pages import served_at
from adsum.serving.reloaded_tls import reloaded_tls
from adsum.serving.sockets import listening_sockets
from adsum.signals import stop_signals, until_signalled
from adsum.tasks import background
from discovery.watch_metrics import CONTENT_TYPE
from registry.disaggregation.allowed_workers import AllowedWorkers
from registry.disaggregation.connectors import (
    Connector,
    NixlConnector,
    SglangConnector,
    SharedStorageConnector,
    TrtllmConnector,
)
from registry.disaggregation.disaggregated_request import Parts
from registry.disaggregation.metrics import SidecarMetrics
from registry.disaggregation.prefill import PrefillLimits, PrefillWorkers
from registry.disaggregation.proxy import BodyLimits, ProxyPort

LAME_DUCK: Final = 3.0
"""Seconds after SIGTERM in which new requests are still answered: pickers hear of the end at the same time."""
_LOOK: Final = 0.05
"""Seconds between two looks whether requests still run."""
_MOST_BODIES: Final = 16
"""Bodies of the largest size that may be held at once."""

log = logging.getLogger("registry")


async def serve(options: argparse.Namespace) -> None:
    """Until a signal, and the drain after it. Raises AdsumError, ValueError and OSError."""
    if options.without_effect:
        log.info("without effect here: %s", ", ".join(options.without_effect))
    with stop_signals() as signals:
        async with AsyncExitStack() as stack:
            opened = await until_signalled(signals, _open(stack, options))
            if opened is None:
                return
            await until_signalled(signals, asyncio.Event().wait())
            await until_signalled(signals, _drain(opened, options.drain_timeout))


async def _open(stack: AsyncExitStack, options: argparse.Namespace) -> list[ProxyPort]:
    """Everything, entered on `stack`; it is ready when this returns."""
    metrics = SidecarMetrics(time.monotonic)
    allowed = await _allowed_workers(stack, options)
    limits = PrefillLimits(
        options.prefill_timeout, options.prefill_max_retries, options.prefill_retry_backoff
    )
    prefill = PrefillWorkers(allowed, limits, _client_tls(options, "prefiller"))
    stack.push_async_callback(prefill.aclose)
    tls = await _server_tls(stack, options)
    connector = _connector(options)
    decoder_tls = _client_tls(options, "decoder")
    bodies = BodyLimits(options.max_request_bytes, _MOST_BODIES * options.max_request_bytes)
    ports = []
    for rank in range(options.data_parallel_size):
        pool = ConnectionPool((options.model_server_host, options.model_server_port + rank), tls=decoder_tls)
        stack.push_async_callback(pool.aclose)
        first = options.port + rank if options.port else 0
        listening = listening_sockets(options.address, first, "--address and --port")
        port = ProxyPort(Parts(pool, prefill, connector, metrics), listening, bodies, tls)
        stack.push_async_callback(port.aclose)
        ports.append(port)
    ready = [f"http={authority(options.address, port.port)}" for port in ports]
    if options.metrics_port:
        app = _metrics_page(metrics)
        page = served_at(options.address, options.metrics_port, app, "the metrics' port", "--metrics-port")
        ready.append(f"metrics={await stack.enter_async_context(page)}")
    for port in ports:
        port.start()
    print_ready(ready)
    return ports


async def _allowed_workers(stack: AsyncExitStack, options: argparse.Namespace) -> AllowedWorkers:
    # bounded: arguments
    listed = [one for given in options.allow_prefill for one in given]
    watched = _watched(options)
    if not watched and not listed:
        log.warning(
            "any address is asked that a request names in x-prefiller-host-port; say which are workers with "
            "--prefill-component, --enable-ssrf-protection or --allow-prefill, unless only a gateway can reach this port"
        )
        return AllowedWorkers(any_address=True)
    allowed = AllowedWorkers(listed)
    if watched is not None:
        url, namespace, component = watched
        token = os.environ.get("ADSUM_TOKEN") or None
        service = await stack.enter_async_context(discovery.open(url, token=token))
        stream = await stack.enter_async_context(service.watch(namespace, component))
        await stack.enter_async_context(background(allowed.follow(stream), "follow the prefill workers"))
    return allowed


def _watched(options: argparse.Namespace) -> tuple[str | None, str, str] | None:
    """Where discovery finds the workers that may be asked: URL, namespace and component. Raises ValueError."""
    if not options.enable_ssrf_protection:
        return None if options.prefill_component is None else (options.discovery, *options.prefill_component)
    if options.prefill_component is not None:
        raise ValueError(
            "--prefill-component and --enable-ssrf-protection both say who may be asked; give one"
        )
    if options.inference_pool is None:
        raise ValueError("--enable-ssrf-protection needs --inference-pool, the pool whose Pods may be asked")
    namespace, _, name = options.inference_pool.rpartition("/")
    query = urlencode({"pool": name, "group": options.pool_group})
    return f"kubernetes://{namespace or 'default'}?{query}", "pool", "workers"


async def _drain(ports: list[ProxyPort], timeout: float) -> None:
    """Answer what still comes for a moment, then let what runs end, within `timeout` seconds in all."""
    log.info("draining: waiting up to %g s for running requests", timeout)
    for port in ports:
        port.draining = True
    try:
        async with asyncio.timeout(timeout):
            await asyncio.sleep(LAME_DUCK)
            for port in ports:
                port.stop_accepting()
            while any(port.busy for port in ports):  # noqa: ASYNC110 -- rarely, and a request has many ways to end
                await asyncio.sleep(_LOOK)
    except TimeoutError:
        log.info("requests still run after %g s; they are cut", timeout)
    log.info("drained")


def _connector(options: argparse.Namespace) -> Connector:
    match options.kv_connector:
        case NixlConnector.name:
            return NixlConnector()
        case SglangConnector.name:
            return SglangConnector(options.sglang_bootstrap_port)
        case TrtllmConnector.name:
            return TrtllmConnector(time.time)
        case _:
            return SharedStorageConnector()


def _metrics_page(metrics: SidecarMetrics) -> web.Application:
    async def page(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text().encode(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    app.router.add_get("/metrics", page)
    return app


def _client_tls(options: argparse.Namespace, stage: str) -> ssl.SSLContext | None:
    # bounded: arguments
    if not any(stage in given for given in options.enable_tls):
        return None
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if any(stage in given for given in options.tls_insecure_skip_verify):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


async def _server_tls(stack: AsyncExitStack, options: argparse.Namespace) -> ssl.SSLContext | None:
    if not options.secure_proxy:
        return None
    if options.cert_path is None:
        raise ValueError("--secure-proxy needs --cert-path, a folder with tls.crt and tls.key")
    folder = Path(options.cert_path)
    try:
        return await stack.enter_async_context(reloaded_tls(folder / "tls.crt", folder / "tls.key"))
    except ValueError as error:
        raise ValueError(f"--cert-path: {error}") from error
