"""One simulated worker's life: serve, register as any worker would, obey signals, drain, leave."""

import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import anyio
from aiohttp import web

from discovery.instance import InstanceStatus
from examples.simulator.app import ModelServer
from examples.simulator.duty import Duty
from examples.simulator.metrics_page import MetricsPage
from examples.simulator.openai_api import Profile
from examples.simulator.pacing import Pacer
from examples.simulator.queueing import Limits, Queueing
from registry import ServiceRegistry

log = logging.getLogger(__name__)

_Signals: TypeAlias = AsyncIterator[signal.Signals]

_CUT_SECONDS = 0.1
"""What a request that outlived the drain gets before its connection is closed."""

_QUIET_SECONDS = 0.25
"""How long nothing must arrive before draining is over: routers hear of it a moment later than we do."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """Where this worker registers, and as what."""

    registry: ServiceRegistry
    namespace: str
    component: str


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that the command line decides. `announcement`: None to serve without registering."""

    profile: Profile
    limits: Limits
    announcement: Announcement | None
    host: str = "127.0.0.1"
    port: int = 0
    speed: float = 1.0
    pad_metrics_bytes: int = 0
    drain_timeout: float = 30.0


async def live(settings: Settings, ready: Callable[[int], None]) -> None:
    """Serve until SIGTERM or SIGINT, then drain and leave. `ready` is called with the port once it can be used.

    SIGUSR1 flips readiness; a second SIGTERM cuts the drain short. Raises, inside an exception group, OSError when the
    port cannot be had and AdsumError when the worker cannot be announced.
    """
    duty = Duty()
    pacer = Pacer(Queueing(settings.limits), speed=settings.speed)
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGUSR1) as signals:
        async with anyio.create_task_group() as tasks, AsyncExitStack() as stack:
            tasks.start_soon(pacer.run)
            stack.callback(tasks.cancel_scope.cancel)
            port = await stack.enter_async_context(_serving(_model_server(settings, pacer, duty), settings))
            say = await _announce(settings, port, stack)
            _change(duty, say, InstanceStatus.READY)
            ready(port)
            await _until_stopped(signals, duty, say)
            _change(duty, say, InstanceStatus.DRAINING)
            await _drain(duty, signals, settings.drain_timeout)


def metadata(settings: Settings, port: int) -> dict[str, Any]:
    """The document that this worker publishes."""
    profile, limits = settings.profile, settings.limits
    runtime = {
        "max_num_seqs": limits.max_num_seqs,
        "kv_cache_block_size": limits.block_size,
        "total_kv_blocks": limits.num_blocks,
        "max_model_len": profile.max_model_len,
        "max_lora": limits.max_lora,
    }
    http = {"port": port, "metrics_port": port, "metrics_path": "/metrics", "engine": "vllm"}
    return {
        "model": {
            "name": profile.model,
            "type": "chat",
            "adapters": list(profile.adapters),
            "runtime_config": runtime,
        },
        "transport": {"http": http},
    }


def _model_server(settings: Settings, pacer: Pacer, duty: Duty) -> ModelServer:
    page = MetricsPage(settings.profile.model, settings.limits, pad_bytes=settings.pad_metrics_bytes)
    return ModelServer(settings.profile, pacer, page, duty, settings.limits.block_size)


@asynccontextmanager
async def _serving(server: ModelServer, settings: Settings) -> AsyncIterator[int]:
    runner = web.AppRunner(
        server.app(), access_log=None, handler_cancellation=True, shutdown_timeout=_CUT_SECONDS
    )
    await runner.setup()
    try:
        await _listen(runner, settings.host, settings.port)
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, host: str, port: int) -> None:
    try:
        await web.TCPSite(runner, host, port, backlog=1024).start()
    except OSError as error:
        number = error.errno or 0  # below 0: the name does not resolve
        reason = os.strerror(number) if number > 0 else error.strerror or error
        message = f"cannot listen on {host}:{port}: {reason}; choose another --host or --port, 0 for any"
        raise OSError(message) from error


async def _announce(settings: Settings, port: int, stack: AsyncExitStack) -> Callable[[InstanceStatus], None]:
    """How to tell the world a status from now on; leaving the stack takes the instance away."""
    if settings.announcement is None:
        return lambda status: None
    told = settings.announcement
    handle = await stack.enter_async_context(told.registry.register_instance(told.namespace, told.component))
    handle.set_metadata(metadata(settings, port))
    return handle.set_ready


async def _until_stopped(signals: _Signals, duty: Duty, say: Callable[[InstanceStatus], None]) -> None:
    async for received in signals:
        if received is not signal.SIGUSR1:
            return
        ready = duty.status is InstanceStatus.READY
        _change(duty, say, InstanceStatus.NOT_READY if ready else InstanceStatus.READY)


async def _drain(duty: Duty, signals: _Signals, timeout: float) -> None:
    with anyio.move_on_after(timeout):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_cut_short, signals, tasks.cancel_scope)
            await duty.quiet(_QUIET_SECONDS)
            tasks.cancel_scope.cancel()
    if duty.requests:
        log.warning("draining ended with %d requests unanswered; they are cut", duty.requests)


async def _cut_short(signals: _Signals, drain: anyio.CancelScope) -> None:
    async for received in signals:
        if received is not signal.SIGUSR1:
            drain.cancel()


def _change(duty: Duty, say: Callable[[InstanceStatus], None], status: InstanceStatus) -> None:
    duty.status = status
    say(status)
    log.info("%s", status.value)
