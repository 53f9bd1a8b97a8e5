"""The queues of one process: opened, replaced and drained as the configuration says, without dropping a request."""

import asyncio
import logging
import random
import ssl
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from dispatcher.broker.opening import Intake, open_intake
from dispatcher.broker.queue import Broker
from dispatcher.broker.quota import Quotas
from dispatcher.broker.result_lists import ResultLists
from dispatcher.config.config_file import Config, QueueConfig, TargetConfig
from dispatcher.delivery.gateway import Gateway
from dispatcher.delivery.observer import DispatchObserver
from dispatcher.delivery.outage import Outage
from dispatcher.delivery.sending import Sender
from dispatcher.gates.building import Surroundings, build_gate
from dispatcher.gates.gate import DispatchGate
from dispatcher.gates.meter import Meters
from dispatcher.pump.lane import Lane
from dispatcher.pump.slots import Slots
from runtime.config.problems import ConfigError
from runtime.os_reason import os_reason
from runtime.tasks import BackgroundTasks, cancel_and_wait

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a lane was made from: two that are equal need no replacement."""

    queue: QueueConfig
    target: TargetConfig
    intake_keys: frozenset[str] = frozenset()
    """Of all queues, where this one has an intake: no message may have its result put there."""


@dataclass(slots=True)
class Running:
    """A lane and everything that was opened for it, in order."""

    wanted: Wanted
    lane: Lane
    opened: AsyncExitStack = field(repr=False)
    intake: AsyncExitStack = field(default_factory=AsyncExitStack, repr=False)
    taking_in: Intake | None = None

    async def start(self, broker: Broker) -> None:
        """Begin to take in and to pump; raises QueueError."""
        config = self.wanted.queue
        if config.intake is not None:
            key, attribute = config.intake.key, config.intake.tenant_attribute
            lists = ResultLists(self.wanted.intake_keys, config.intake.result_lists)
            intake = open_intake(
                broker, config.name, config.rules, key=key, tenant_attribute=attribute, lists=lists
            )
            self.taking_in = await self.intake.enter_async_context(intake)
        await self.opened.enter_async_context(self.lane)

    async def stop_claiming(self) -> None:
        """Take in and claim nothing more."""
        await self.intake.aclose()
        await self.lane.stop_claiming()

    async def aclose(self) -> None:
        """Nothing of it is left."""
        await self.intake.aclose()
        await self.opened.aclose()


@dataclass(frozen=True, slots=True)
class Shared:
    """What all lanes of a process have in common. `owner` names this process in its claims."""

    broker: Broker
    quotas: Quotas
    meters: Meters
    observer: Callable[[str, str], DispatchObserver]
    """Of a queue, by its name and its target's."""
    now_ms: Callable[[], int]
    owner: str


class Lanes:
    """Left: nothing runs any more; what was on its way is released to its queue."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._slots: dict[str, Slots] = {}
        self._outages: dict[str, Outage] = {}
        self._running: dict[str, Running] = {}
        self._closing = BackgroundTasks()
        self._draining: list[Running] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._closing.aclose()
        everything = [*self._running.values(), *self._draining]
        await asyncio.gather(*(running.aclose() for running in everything))

    @property
    def running(self) -> Mapping[str, Running]:
        """By the queue's name; those that drain are not among them."""
        return self._running

    async def apply(self, config: Config) -> None:
        """Make it so; raises ConfigError, before anything that runs is touched, and QueueError."""
        wanted = {queue.name: _wanted(queue, config) for queue in config.queues}
        changed = [want for name, want in wanted.items() if not self._runs(name, want)]
        fresh: list[Running] = []
        try:
            for want in changed:
                fresh.append(await self._open(want))
        except BaseException:
            await asyncio.gather(*(running.aclose() for running in fresh))
            raise
        replaced = [name for name, running in self._running.items() if wanted.get(name) != running.wanted]
        await asyncio.gather(*(self._drain_one(name) for name in replaced))
        for want in wanted.values():
            self._slots_of(want.target).limit = want.target.concurrency
        while fresh:
            try:
                await fresh[0].start(self._shared.broker)
            except BaseException:
                await asyncio.gather(*(running.aclose() for running in fresh))
                raise
            running = fresh.pop(0)
            self._running[running.wanted.queue.name] = running

    def why_not(self) -> str:
        """Why nothing comes in to one of the queues; empty where something does."""
        intakes = (running.taking_in for running in self._running.values())
        return next((intake.problem for intake in intakes if intake is not None and intake.problem), "")

    async def drain(self, timeout: float) -> None:
        """Claim nothing more, and give what is on its way `timeout` seconds to end."""
        everything = [*self._running.values(), *self._draining]
        await asyncio.gather(*(running.stop_claiming() for running in everything))
        landing = [asyncio.ensure_future(running.lane.landed()) for running in everything]
        if landing:
            _, late = await asyncio.wait(landing, timeout=timeout)
            await cancel_and_wait(*late)

    def _runs(self, name: str, wanted: Wanted) -> bool:
        running = self._running.get(name)
        return running is not None and running.wanted == wanted

    async def _open(self, wanted: Wanted) -> Running:
        shared, queue_config, target = self._shared, wanted.queue, wanted.target
        async with AsyncExitStack() as stack:
            queue = await stack.enter_async_context(
                shared.broker.queue(queue_config.name, queue_config.rules)
            )
            ledger = await stack.enter_async_context(shared.broker.ledger(target.name))
            around = Surroundings(target.name, ledger, shared.quotas, shared.meters, target.concurrency)
            gate = await stack.enter_async_context(_gate(queue_config, around))
            gateway = await stack.enter_async_context(Gateway(target.url, tls=trusted(target)))
            sender = Sender(
                queue=queue,
                gateway=gateway,
                route=queue_config.route(target),
                request_timeout=target.request_timeout,
                now_ms=shared.now_ms,
                observer=shared.observer(queue_config.name, target.name),
                outage=self._outages.setdefault(target.name, Outage(target.name)),
                rng=random.Random(),
            )
            slots = self._slots_of(target)
            lane = Lane(queue, gate, slots, sender, owner=shared.owner, lease=queue_config.lease)
            return Running(wanted, lane, stack.pop_all())

    def _slots_of(self, target: TargetConfig) -> Slots:
        return self._slots.setdefault(target.name, Slots(target.concurrency))

    async def _drain_one(self, name: str) -> None:
        running = self._running.pop(name)
        await running.stop_claiming()
        self._draining.append(running)
        self._closing.start(self._close_when_landed(running), f"close {name}")

    async def _close_when_landed(self, running: Running) -> None:
        await running.lane.landed()
        self._draining.remove(running)
        await running.aclose()


def _wanted(queue: QueueConfig, config: Config) -> Wanted:
    keys = config.intake_keys if queue.intake is not None else frozenset()
    return Wanted(queue, config.target(queue.target), keys)


def _gate(queue: QueueConfig, around: Surroundings) -> DispatchGate:
    return build_gate(queue.gate_spec(), around)


def trusted(target: TargetConfig) -> ssl.SSLContext | None:
    """Whose certificates a target may show; None: whom the system trusts. Raises ConfigError."""
    if target.ca_file is None:
        return None
    try:
        return ssl.create_default_context(cafile=target.ca_file)
    except OSError as error:
        raise ConfigError(
            f"targets.{target.name}.ca_file",
            f"no certificates in {target.ca_file}: {os_reason(error)}; expected a PEM file that this user can read",
        ) from error
