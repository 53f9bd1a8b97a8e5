"""Runs one simulated worker: serves, registers, handles signals, drains."""

import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio
from aiohttp import web

from discovery.instance import InstanceStatus
from examples.simulator.app import ModelServer
from examples.simulator.encoding import Encoder
from examples.simulator.faults import Faults
from examples.simulator.handover import KvHandovers, TransferTimes
from examples.simulator.kv_messages import KvFormat
from examples.simulator.metrics_page import MetricsPage
from examples.simulator.openai_api import Profile
from examples.simulator.pacing import Pacer
from examples.simulator.scheduler_model import Limits, SchedulerModel
from examples.simulator.state import WorkerState
from registry import ServiceRegistry

if TYPE_CHECKING:
    from examples.simulator.kv_events import CacheEvents

log = logging.getLogger(__name__)

_Signals: TypeAlias = AsyncIterator[signal.Signals]

_SHUTDOWN_TIMEOUT = 0.1
"""Seconds for requests that outlive the drain, before their connections are closed."""

_IDLE_SECONDS = 0.25
"""Seconds without a request that end the drain: routers hear of DRAINING a moment later and send some until then."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """The registry and the key under which this worker registers."""

    registry: ServiceRegistry
    namespace: str
    component: str


@dataclass(frozen=True, slots=True)
class Settings:
    """The parsed command line. `announcement` None: serve without registering. `faults`: it has them on request.

    `kv_events`: how it publishes what its prefix cache holds, None: not at all; at `kv_ports`, of events and of replays.
    `role` None: all stages of a request run here, and it says nothing of that. `bootstrap_port`: a second one to listen on, as
    SGLang's prefill workers do; None: there is none. `advertised_port`: of what stands in front of it; None: nothing does.
    """

    profile: Profile
    limits: Limits
    announcement: Announcement | None
    host: str = "127.0.0.1"
    port: int = 0
    speed: float = 1.0
    pad_metrics_bytes: int = 0
    drain_timeout: float = 30.0
    faults: bool = False
    kv_events: KvFormat | None = None
    kv_ports: tuple[int, int] = (0, 0)
    kv_buffer_steps: int = 10_000
    role: str | None = None
    transfer: TransferTimes = field(default_factory=TransferTimes)
    reached_at: str = "127.0.0.1"
    bootstrap_port: int | None = None
    encode_seconds: float = 0.2
    advertised_port: int | None = None


async def serve_until_stopped(settings: Settings, ready: Callable[[int], None]) -> None:
    """Serve until SIGTERM or SIGINT, then drain and leave. Calls `ready` with the port when the worker is registered.

    SIGUSR1 toggles readiness; a second SIGTERM cuts the drain short. Raises, in an exception group, OSError if the port is
    not available and AdsumError if the worker cannot be registered.
    """
    state = WorkerState()
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGUSR1) as signals:
        async with anyio.create_task_group() as tasks, AsyncExitStack() as stack:
            kv_events = await _kv_events(settings, stack)
            model = SchedulerModel(settings.limits, kv_events)
            advanced = () if kv_events is None else (kv_events.flush,)
            pacer = Pacer(model, settings.speed, *advanced)
            if kv_events is not None:
                kv_events.forget_cache = model.forget_cache
            tasks.start_soon(pacer.run)
            stack.callback(tasks.cancel_scope.cancel)
            server = _model_server(settings, pacer, state, kv_events)
            port = await stack.enter_async_context(_serving(server, settings))
            for reached in (server.handovers, server.encoder):
                if reached is not None:
                    reached.address = settings.reached_at, port
            publish = await _register(settings, port, stack)
            _set_status(state, publish, InstanceStatus.READY)
            ready(port)
            await _wait_for_stop(signals, state, publish)
            _set_status(state, publish, InstanceStatus.DRAINING)
            await _drain(state, signals, settings.drain_timeout)


def metadata(settings: Settings, port: int) -> dict[str, Any]:
    """Returns what the worker says at `GET /metadata`."""
    profile, limits = settings.profile, settings.limits
    runtime = {
        "max_num_seqs": limits.max_num_seqs,
        "kv_cache_block_size": limits.block_size,
        "total_kv_blocks": limits.num_blocks,
        "max_model_len": profile.max_model_len,
        "max_lora": limits.max_lora,
    }
    http = {
        "port": settings.advertised_port or port,
        "metrics_port": port,
        "metrics_path": "/metrics",
        "engine": "vllm",
    }
    return {
        "model": {
            "name": profile.model,
            "type": "chat",
            "adapters": list(profile.adapters),
            "runtime_config": runtime,
        },
        "transport": {"http": http},
    }


async def _kv_events(settings: Settings, stack: AsyncExitStack) -> "CacheEvents | None":
    if settings.kv_events is None:
        return None
    # imports pyzmq
    from examples.simulator.kv_events import CacheEvents
    from examples.simulator.kv_publisher import KvEventPublisher

    publisher = KvEventPublisher(
        settings.host,
        settings.kv_ports,
        topic_in_replay=not settings.kv_events.endswith("-old"),
        buffer_steps=settings.kv_buffer_steps,
    )
    await stack.enter_async_context(publisher)
    return CacheEvents(settings.kv_events, publisher, settings.limits.block_size)


def _model_server(
    settings: Settings, pacer: Pacer, state: WorkerState, kv_events: "CacheEvents | None"
) -> ModelServer:
    page = MetricsPage(settings.profile.model, settings.limits, pad_bytes=settings.pad_metrics_bytes)
    faults = Faults(kv_events) if settings.faults else None
    block_size = settings.limits.block_size
    handovers = KvHandovers(pacer, settings.transfer, block_size, settings.role or "both")
    encoder = Encoder(pacer, settings.encode_seconds)
    return ModelServer(
        settings.profile, pacer, page, state, block_size, faults, kv_events, handovers, encoder
    )


@asynccontextmanager
async def _serving(server: ModelServer, settings: Settings) -> AsyncIterator[int]:
    runner = web.AppRunner(
        server.app(), access_log=None, handler_cancellation=True, shutdown_timeout=_SHUTDOWN_TIMEOUT
    )
    await runner.setup()
    try:
        await _listen(runner, settings.host, settings.port)
        if settings.bootstrap_port is not None:
            await _listen(runner, settings.host, settings.bootstrap_port)
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


async def _register(settings: Settings, port: int, stack: AsyncExitStack) -> Callable[[InstanceStatus], None]:
    """Register the worker until the stack is closed; the returned function publishes a status."""
    if settings.announcement is None:
        return lambda status: None
    announcement = settings.announcement
    handle = await stack.enter_async_context(
        announcement.registry.register_instance(announcement.namespace, announcement.component)
    )
    handle.set_metadata(metadata(settings, port))
    return handle.set_ready


async def _wait_for_stop(
    signals: _Signals, state: WorkerState, publish: Callable[[InstanceStatus], None]
) -> None:
    async for received in signals:
        if received is not signal.SIGUSR1:
            return
        ready = state.status is InstanceStatus.READY
        _set_status(state, publish, InstanceStatus.NOT_READY if ready else InstanceStatus.READY)


async def _drain(state: WorkerState, signals: _Signals, timeout: float) -> None:
    with anyio.move_on_after(timeout):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_cancel_on_signal, signals, tasks.cancel_scope)
            await state.wait_idle(_IDLE_SECONDS)
            tasks.cancel_scope.cancel()
    if state.requests:
        log.warning("draining ended with %d requests unanswered; they are cut", state.requests)


async def _cancel_on_signal(signals: _Signals, drain: anyio.CancelScope) -> None:
    async for received in signals:
        if received is not signal.SIGUSR1:
            drain.cancel()


def _set_status(
    state: WorkerState, publish: Callable[[InstanceStatus], None], status: InstanceStatus
) -> None:
    state.status = status
    publish(status)
    log.info("%s", status.value)
