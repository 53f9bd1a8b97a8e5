"""Composes the dispatcher from its configuration: broker, pages, front door, lanes."""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any

from aiohttp import web
from prometheus_client.registry import Collector

from dispatcher.broker.clock import BrokerClock
from dispatcher.broker.message import MAX_PAYLOAD
from dispatcher.broker.opening import eviction_warning, open_broker
from dispatcher.broker.queue import Broker, QueueError
from dispatcher.config.config_file import Config
from dispatcher.delivery.observer import DispatchObserver
from dispatcher.gates.building import meter_states
from dispatcher.gates.meter import Meters
from dispatcher.pump.lanes import LaneContext, Lanes, RunningLane
from dispatcher.telemetry.broker_metrics import BrokerMetrics, QueueStatus
from dispatcher.telemetry.counters import DispatcherTelemetry
from dispatcher.web import status_pages as status
from dispatcher.web.front_door import FrontDoor, FrontDoorQueue
from runtime.addresses import authority
from runtime.os_reason import os_reason
from runtime.resource_owner import ResourceOwner
from runtime.serving.pages import ConnectionLimits, PageServer
from runtime.serving.sockets import ListenError, listening_sockets
from runtime.tasks import cancel_and_wait

MAX_CONNECTIONS = 2048
"""Open connections; a client that waits for a result holds one."""
PING_INTERVAL = 1.0
"""Seconds."""
PING_TIMEOUT = 3.0
"""Seconds without an answer after which the broker counts as away."""
TOTALS_TIMEOUT = 2.0
"""Seconds for which a scrape of /metrics waits for the broker."""

ObserverWrapper = Callable[[DispatchObserver, str], DispatchObserver]
"""Wraps the observer of a queue, given its name: a hook for tests."""

_LISTEN = "expected an address of this host and a free port, set http.host and http.port"

log = logging.getLogger(__name__)


def _unwrapped(observer: DispatchObserver, _: str) -> DispatchObserver:
    return observer


class DispatcherServer(ResourceOwner):
    """An async context manager; entering raises ConfigError, QueueError and ListenError.

    Entered, the broker has answered and every queue is open. Left, complete answers are stored and claims are released.
    """

    def __init__(self, config: Config, *, wrap_observer: ObserverWrapper = _unwrapped) -> None:
        self._config = config
        self._wrap_observer = wrap_observer
        self._telemetry = DispatcherTelemetry()
        self._unready = "starting"
        self._broker_away = ""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._unready = "stopping"
        await super().__aexit__(kind, error, trace)

    @property
    def ready_line(self) -> str:
        """Printed when the process is ready, for programs that start it."""
        return f"ready http={self._address} queues={','.join(self._lanes.running) or 'none'}"

    async def reconfigure(self, config: Config) -> None:
        """Apply `config`; requests in flight go on. Raises ConfigError and QueueError; then the old one stays in force."""
        await self._lanes.apply(config)
        for name in ("broker", "http"):
            if getattr(config, name) != getattr(self._config, name):
                log.warning("%s changed in the configuration; restart the dispatcher to apply it", name)
        self._config = config

    def set_config_in_force(self, in_force: bool) -> None:
        """For metrics: whether the last version of the configuration file was accepted."""
        self._telemetry.config_in_force = in_force

    async def drain(self) -> None:
        """Report not ready, claim nothing more, and give requests in flight the drain timeout to end."""
        self._unready = "draining"
        in_flight = sum(running.lane.in_flight for running in self._lanes.running.values())
        log.info("draining, %d requests are in flight", in_flight)
        await self._lanes.drain(self._config.drain_timeout)

    async def _open(self) -> None:
        broker = await self._stack.enter_async_context(open_broker(self._config.broker))
        if risk := await eviction_warning(broker):
            log.warning("%s", risk)
        self._clock = BrokerClock(broker.now_ms)
        await self._clock.sample()
        self._start_task(self._clock.run())
        self._start_task(self._ping(broker))
        await self._open_pages()
        shared = LaneContext(
            broker=broker,
            quotas=await self._stack.enter_async_context(broker.quotas()),
            meters=await self._stack.enter_async_context(Meters()),
            observer=lambda queue, target: self._wrap_observer(self._telemetry.of(queue, target), queue),
            now_ms=self._clock.now_ms,
            owner=f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}",
        )
        self._lanes = await self._stack.enter_async_context(Lanes(shared))
        await self._lanes.apply(self._config)
        self._unready = ""

    async def _open_pages(self) -> None:
        app = web.Application(client_max_size=MAX_PAYLOAD)
        status.add_routes(app, self._telemetry, self._collect, self._unready_reason)
        FrontDoor(self._front_door_queue, self._clock.now_ms).add_routes(app)
        listen = self._config.http
        try:
            listening = listening_sockets(listen.host, listen.port)
        except (OSError, UnicodeError) as error:  # a name that is none is a UnicodeError
            reason = os_reason(error) if isinstance(error, OSError) else "no name of a host"
            raise ListenError(
                f"cannot listen on {listen.host} port {listen.port}: {reason}; {_LISTEN}"
            ) from error
        pages = PageServer(app, listening, "the front door", ConnectionLimits(MAX_CONNECTIONS))
        self._stack.push_async_callback(pages.aclose)
        await pages.start()
        self._address = authority(listen.host, pages.port)

    def _unready_reason(self) -> str:
        return self._unready or self._broker_away or self._lanes.unready_reason()

    async def _ping(self, broker: Broker) -> None:
        """Readiness must fail during an outage even if no queue has work."""
        while True:
            try:
                async with asyncio.timeout(PING_TIMEOUT):
                    answered = await broker.ping()
                reason = "" if answered else "the broker does not answer"
            except (QueueError, TimeoutError) as error:
                reason = f"the broker does not answer: {error}"
            self._set_broker_outage(reason)
            await asyncio.sleep(PING_INTERVAL)

    def _set_broker_outage(self, away: str) -> None:
        """Log an outage once when it begins and once when it ends, not for each request that waits for it."""
        if away and not self._broker_away:
            log.warning("%s; answers are held until it does", away)
        elif self._broker_away and not away:
            log.warning("the broker answers again")
        self._broker_away = away

    async def _collect(self) -> Sequence[Collector]:
        if self._unready == "starting":
            return []
        readings = await asyncio.gather(
            *(self._queue_status(running) for running in self._lanes.running.values())
        )
        return [BrokerMetrics(readings)]

    async def _queue_status(self, running: RunningLane) -> QueueStatus:
        spec, lane = running.spec, running.lane
        try:
            async with asyncio.timeout(TOTALS_TIMEOUT):
                totals = await lane.queue.totals()
        except (QueueError, TimeoutError):
            totals = None
        return QueueStatus(
            spec.queue.name,
            spec.target.name,
            lane.gate.budget(),
            totals,
            spec.target.concurrency,
            meter_states(lane.gate),
        )

    def _front_door_queue(self) -> FrontDoorQueue | None:
        door = self._config.front_door
        if door is None or self._unready or door.queue not in self._lanes.running:
            return None
        running = self._lanes.running[door.queue]
        spec = running.spec
        return FrontDoorQueue(
            running.lane.queue,
            spec.queue.route(spec.target),
            door.deadline,
            door.tokens,
            spec.queue.max_payload,
        )

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._stack.push_async_callback(cancel_and_wait, task)
