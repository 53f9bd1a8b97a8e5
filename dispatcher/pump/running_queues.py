"""Runs the queues of one process: opens, replaces and drains them when the configuration changes."""

import asyncio
import logging
import random
import ssl
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Self

from adsum.config.problems import ConfigError
from adsum.entry_points import in_one_line
from adsum.errors import os_reason
from adsum.tasks import BackgroundTasks, cancel_and_wait
from adsum.tracing.span import Tracer
from dispatcher.broker.contract.ledger import Quotas
from dispatcher.broker.contract.queue import Broker, QueueError
from dispatcher.broker.opening import Intake, open_intake
from dispatcher.broker.redis.go_queues.go_message import ResultLists
from dispatcher.config.config_file import Config, QueueConfig, TargetConfig
from dispatcher.delivery.answer_limits import AnswerMemory
from dispatcher.delivery.gateway import Gateway, OutageLog
from dispatcher.delivery.sender import DispatchObserver, Sender
from dispatcher.gates.building import GateDependencies, build_gate
from dispatcher.gates.metering.meter import Meters
from dispatcher.pump.queue_runner import QueueRunner
from dispatcher.pump.slots import Slots

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunnerSpec:
    """The parts that a runner is built from. A reload replaces the queues whose spec changed."""

    queue: QueueConfig
    target: TargetConfig
    intake_keys: frozenset[str] = frozenset()
    """The keys of all queues, if this one has an intake: no message may name one of them for its result."""


@dataclass(frozen=True, slots=True)
class RunningQueue:
    """A runner and the resources that were opened for it, itself among them once it is started."""

    spec: RunnerSpec
    runner: QueueRunner
    opened: AsyncExitStack = field(repr=False)


@dataclass(frozen=True, slots=True)
class RunnerContext:
    """The parts that all queues of a process share. `owner` names this process in its claims."""

    broker: Broker
    quotas: Quotas
    meters: Meters
    observer: Callable[[str, str], DispatchObserver]
    """Makes the observer of a queue from its name and its target's."""
    now_ms: Callable[[], int]
    owner: str
    tracer: Tracer | None = None


class RunningQueues:
    """An async context manager; left, all queues are closed and their claims released."""

    def __init__(self, shared: RunnerContext) -> None:
        self._shared = shared
        self._slots: dict[str, Slots] = {}
        self._outages: dict[str, OutageLog] = {}
        self._wanted: Collection[str] = ()
        self._answers = AnswerMemory()
        self._running: dict[str, RunningQueue] = {}
        self._closing = BackgroundTasks()
        self._draining: list[RunningQueue] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._closing.aclose()
        queues = [*self._running.values(), *self._draining]
        await asyncio.gather(*(running.opened.aclose() for running in queues))

    @property
    def running(self) -> Mapping[str, RunningQueue]:
        """By queue name, without queues that drain."""
        return self._running

    async def apply(self, config: Config) -> None:
        """Open, replace and drain queues as `config` says; raises ConfigError and QueueError.

        All that can fail is done before a running queue is touched: a configuration that cannot be opened changes nothing.
        """
        specs = {queue.name: _spec_of(queue, config) for queue in config.queues}
        outdated = {name: one for name, one in self._running.items() if specs.get(name) != one.spec}
        new: list[RunningQueue] = []
        try:
            for name, spec in specs.items():
                if name not in self._running or name in outdated:
                    new.append(await self._open_checked(spec))
        except BaseException:
            await asyncio.gather(*(running.opened.aclose() for running in new))
            raise
        self._wanted = specs
        await asyncio.gather(*(running.runner.stop_claiming() for running in outdated.values()))
        for name in outdated:
            self._drain_one(name)
        self._answers.max_bytes = config.answer_memory
        for spec in specs.values():
            self._slots_of(spec.target).limit = spec.target.concurrency
        for running in new:
            self._running[running.spec.queue.name] = running
            await running.opened.enter_async_context(running.runner)

    def unready_reason(self) -> str:
        """Which queue is not served, or why an intake moves nothing into its queue; empty if all work."""
        for name in self._wanted:
            if name not in self._running or not self._running[name].runner.serves:
                return f"queue {name} is not served any more; restart the dispatcher"
        intakes = (running.runner.intake for running in self._running.values())
        return next((intake.problem for intake in intakes if intake is not None and intake.problem), "")

    async def drain(self, timeout: float) -> None:
        """Claim nothing more; give requests in flight `timeout` seconds to end."""
        queues = [*self._running.values(), *self._draining]
        await asyncio.gather(*(running.runner.stop_claiming() for running in queues))
        drained = [asyncio.ensure_future(running.runner.drained()) for running in queues]
        if drained:
            _, late = await asyncio.wait(drained, timeout=timeout)
            await cancel_and_wait(*late)

    async def _open_checked(self, spec: RunnerSpec) -> RunningQueue:
        try:
            return await self._open(spec)
        except (ConfigError, QueueError):
            raise
        except Exception as error:  # of a broker or a gate, which may be an installed package's
            problem = in_one_line(error, kind=not isinstance(error, ValueError))
            raise ConfigError(f"queues.{spec.queue.name}", f"cannot be opened: {problem}") from error

    async def _open(self, spec: RunnerSpec) -> RunningQueue:
        shared, queue_config, target = self._shared, spec.queue, spec.target
        async with AsyncExitStack() as stack:
            queue = await stack.enter_async_context(
                shared.broker.queue(queue_config.name, queue_config.rules)
            )
            ledger = await stack.enter_async_context(shared.broker.ledger(target.name))
            dependencies = GateDependencies(
                target.name, ledger, shared.quotas, shared.meters, target.concurrency
            )
            gate = await stack.enter_async_context(build_gate(queue_config.gate_spec(), dependencies))
            gateway = await stack.enter_async_context(
                Gateway(target.url, tls=target_tls(target), memory=self._answers)
            )
            sender = Sender(
                queue=queue,
                gateway=gateway,
                route=queue_config.route(target),
                request_timeout=target.request_timeout,
                now_ms=shared.now_ms,
                observer=shared.observer(queue_config.name, target.name),
                outage=self._outages.setdefault(target.name, OutageLog(target.name)),
                rng=random.Random(),
                tracer=shared.tracer,
                limits=queue_config.attempt_limits,
            )
            runner = QueueRunner(
                gate,
                self._slots_of(target),
                sender,
                owner=shared.owner,
                lease=queue_config.lease,
                intake=await self._checked_intake(spec),
            )
            return RunningQueue(spec, runner, stack.pop_all())

    async def _checked_intake(self, spec: RunnerSpec) -> Intake | None:
        config = spec.queue
        if config.intake is None:
            return None
        intake = open_intake(
            self._shared.broker,
            config.name,
            config.rules,
            key=config.intake.key,
            tenant_attribute=config.intake.tenant_attribute,
            lists=ResultLists(spec.intake_keys, config.intake.result_lists),
        )
        await intake.check()
        return intake

    def _slots_of(self, target: TargetConfig) -> Slots:
        return self._slots.setdefault(target.name, Slots(target.concurrency))

    def _drain_one(self, name: str) -> None:
        running = self._running.pop(name)
        self._draining.append(running)
        self._closing.start(self._close_when_drained(running), f"close {name}")

    async def _close_when_drained(self, running: RunningQueue) -> None:
        await running.runner.drained()
        self._draining.remove(running)
        await running.opened.aclose()


def _spec_of(queue: QueueConfig, config: Config) -> RunnerSpec:
    keys = config.intake_keys if queue.intake is not None else frozenset()
    return RunnerSpec(queue, config.target(queue.target), keys)


def target_tls(target: TargetConfig) -> ssl.SSLContext | None:
    """TLS with the target's own certificate authorities; None: the system's. Raises ConfigError."""
    if target.ca_file is None:
        return None
    try:
        return ssl.create_default_context(cafile=target.ca_file)
    except OSError as error:
        raise ConfigError(
            f"targets.{target.name}.ca_file",
            f"no certificates in {target.ca_file}: {os_reason(error)}; expected a PEM file that this user can read",
        ) from error
