"""Composes the dispatcher from its configuration: broker, pages, front door, queues."""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Never

from aiohttp import web
from prometheus_client.registry import Collector

from adsum.addresses import is_loopback
from adsum.config.problems import ConfigError
from adsum.logs import RateLimitedLog
from adsum.tasks import ResourceOwner
from adsum.tracing.span import Tracer
from dispatcher.broker.clock import BrokerClock
from dispatcher.broker.contract.queue import Broker, QueueError
from dispatcher.broker.opening import eviction_warning, open_broker
from dispatcher.config.config_file import Config
from dispatcher.delivery.sender import DispatchObserver
from dispatcher.gates.building import meter_states
from dispatcher.gates.metering.meter import Meters
from dispatcher.pump.running_queues import RunnerContext, RunningQueue, RunningQueues
from dispatcher.telemetry.metrics import BrokerMetrics, DispatcherTelemetry, QueueStatus
from dispatcher.telemetry.recent_results import STEP, RecentResults
from dispatcher.web.front_door import FrontDoor, FrontDoorQueue
from dispatcher.web.ports import add_status_routes, serve_pages, waiting_limit
from dispatcher.web.queue_pages import QueuePages
from dispatcher.web.queue_states import QueueStates

PING_INTERVAL = 1.0
"""Seconds."""
PING_TIMEOUT = 3.0
"""Seconds without an answer after which the broker counts as away."""
TOTALS_TIMEOUT = 2.0
"""Seconds for which a scrape of /metrics waits for the broker."""

_AWAY = "the broker does not answer"

ObserverWrapper = Callable[[DispatchObserver, str], DispatchObserver]
"""Wraps the observer of a queue, given its name: a hook for tests."""

log = logging.getLogger(__name__)


def _unwrapped(observer: DispatchObserver, _: str) -> DispatchObserver:
    return observer


class DispatcherServer(ResourceOwner):
    """An async context manager; entering raises ConfigError, QueueError and ListenError.

    Entered, the broker has answered and every queue is open. Left, complete answers are stored and claims are released.
    """

    def __init__(
        self, config: Config, *, wrap_observer: ObserverWrapper = _unwrapped, tracer: Tracer | None = None
    ) -> None:
        self._config = config
        self._tracer = tracer
        self._wrap_observer = wrap_observer
        self._telemetry = DispatcherTelemetry()
        self._recent = RecentResults(self._telemetry)
        self._unready = "starting"
        self._broker_away = ""
        self._limited_log = RateLimitedLog(log)

    async def __aexit__(self, *_: object) -> None:
        self._unready = "stopping"
        await super().__aexit__(None, None, None)

    @property
    def ready_line(self) -> str:
        """Printed when the process is ready, for programs that start it."""
        further = {"health": self._addresses.health, "debug": self._addresses.debug}
        ports = "".join(f" {name}={address}" for name, address in further.items() if address)
        return f"ready http={self._addresses.http} queues={','.join(self._queues.running) or 'none'}{ports}"

    async def reconfigure(self, config: Config) -> None:
        """Apply `config`; requests in flight go on. Raises ConfigError and QueueError; then the old one stays in force."""
        restart = [
            name for name in ("broker", "http") if getattr(config, name) != getattr(self._config, name)
        ]
        try:
            await self._queues.apply(config)
        except ConfigError as error:
            if "broker" not in restart:
                raise
            message = f"{error.one_line}; the broker changed too, restart the dispatcher to apply that"
            raise ConfigError("", message) from error
        for name in restart:
            log.warning("%s changed in the configuration; restart the dispatcher to apply it", name)
        self._config = config
        self._warn_of_plain_tokens(config)

    def set_config_in_force(self, in_force: bool) -> None:
        """For metrics: whether the last version of the configuration file was accepted."""
        self._telemetry.config_in_force = in_force

    async def drain(self) -> None:
        """Report not ready, claim nothing more, and give requests in flight the drain timeout to end."""
        self._unready = "draining"
        in_flight = sum(running.runner.in_flight for running in self._queues.running.values())
        log.info("draining, %d requests are in flight", in_flight)
        await self._queues.drain(self._config.drain_timeout)

    async def _open(self) -> None:
        broker = await self._stack.enter_async_context(open_broker(self._config.broker))
        if risk := await eviction_warning(broker):
            log.warning("%s", risk)
        self._clock = BrokerClock(broker.now_ms)
        await self._clock.sample()
        self._start(self._clock.run())
        self._start(self._ping(broker))
        self._start(self._sample_results())
        await self._open_pages()
        shared = RunnerContext(
            broker=broker,
            quotas=await self._stack.enter_async_context(broker.quotas()),
            meters=await self._stack.enter_async_context(Meters()),
            observer=lambda queue, target: self._wrap_observer(self._telemetry.of(queue, target), queue),
            now_ms=self._clock.now_ms,
            tracer=self._tracer,
            owner=f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}",
        )
        self._queues = await self._stack.enter_async_context(RunningQueues(shared))
        await self._queues.apply(self._config)
        self._unready = ""

    async def _open_pages(self) -> None:
        queues = QueueStates(self._running, self._recent, self._front_door_name)
        self._stack.push_async_callback(queues.aclose)
        door = FrontDoor(self._front_door_queue, self._clock.now_ms, waiting_limit(), tracer=self._tracer)
        pages = serve_pages(
            self._config.http, QueuePages(queues, self._unready_reason), self._add_health, door.add_routes
        )
        self._addresses = await self._stack.enter_async_context(pages)
        self._warn_of_plain_tokens(self._config)

    def _add_health(self, app: web.Application) -> None:
        add_status_routes(app, self._telemetry, self._collect, self._unready_reason)

    def _warn_of_plain_tokens(self, config: Config) -> None:
        http = self._config.http  # of the start: it takes a restart to change it
        has_tokens = config.front_door is not None and config.front_door.tokens
        if has_tokens and http.tls_cert_file is None and not is_loopback(http.host):
            log.warning(
                "front_door.tokens: clients send them without TLS to %s, where others can read them; set http.tls_cert_file "
                "and http.tls_key_file, or let only a proxy with TLS reach this port",
                self._addresses.http,
            )

    def _running(self) -> Mapping[str, RunningQueue]:
        return {} if self._unready == "starting" else self._queues.running

    def _front_door_name(self) -> str | None:
        door = self._config.front_door
        return door.queue if door is not None else None

    def _unready_reason(self) -> str:
        return self._unready or self._broker_away or self._queues.unready_reason()

    async def _ping(self, broker: Broker) -> Never:
        """Readiness must fail during an outage even if no queue has work."""
        while True:
            try:
                async with asyncio.timeout(PING_TIMEOUT):
                    answered = await broker.ping()
                reason = "" if answered else _AWAY
            except TimeoutError:
                reason = f"{_AWAY} within {PING_TIMEOUT:g} s"
            except QueueError as error:
                reason = f"the broker takes nothing in: {error}"
            except Exception as error:  # noqa: BLE001  # a broker of an installed package may raise anything
                self._limited_log.warning("ping", "the broker fails: %r", error)
                reason = f"the broker fails, see the log: {type(error).__name__}"
            self._set_broker_outage(reason)
            await asyncio.sleep(PING_INTERVAL)

    async def _sample_results(self) -> Never:
        while True:
            await asyncio.sleep(STEP)
            self._recent.sample()

    def _set_broker_outage(self, away: str) -> None:
        """Log an outage once when it begins and once when it ends, not for each request that waits for it."""
        if away and not self._broker_away:
            log.warning("%s%s", away, "; answers are held until it does" if away.startswith(_AWAY) else "")
        elif self._broker_away and not away:
            log.warning(
                "the broker %s", "answers again" if self._broker_away.startswith(_AWAY) else "is well again"
            )
        self._broker_away = away

    async def _collect(self) -> Sequence[Collector]:
        if self._unready == "starting":
            return []
        readings = await asyncio.gather(
            *(self._queue_status(running) for running in self._running().values())
        )
        return [BrokerMetrics(readings)]

    async def _queue_status(self, running: RunningQueue) -> QueueStatus:
        spec, runner = running.spec, running.runner
        try:
            async with asyncio.timeout(TOTALS_TIMEOUT):
                totals = await runner.queue.totals()
        except (QueueError, TimeoutError):
            totals = None
        except Exception as error:  # noqa: BLE001  # as above: the scrape shows all else
            self._limited_log.warning(
                "totals", "queue %s: its totals cannot be read: %r", spec.queue.name, error
            )
            totals = None
        return QueueStatus(
            spec.queue.name,
            spec.target.name,
            runner.gate.budget(),
            totals,
            spec.target.concurrency,
            meter_states(runner.gate),
        )

    def _front_door_queue(self) -> FrontDoorQueue | None:
        door = self._config.front_door
        if door is None or self._unready or door.queue not in self._queues.running:
            return None
        running = self._queues.running[door.queue]
        spec = running.spec
        return FrontDoorQueue(
            running.runner.queue,
            spec.queue.route(spec.target),
            door.deadline,
            door.tokens,
            spec.queue.max_payload,
        )
