"""Reads the state of all queues for the page, while somebody looks: the broker is asked once for all who do."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple

from adsum.logs import RateLimitedLog
from adsum.tasks import cancel_and_wait
from dispatcher.broker.contract.queue import QueueError, TenantBacklog, Totals
from dispatcher.gates.building import meter_states
from dispatcher.pump.running_queues import RunningQueue
from dispatcher.telemetry.recent_results import RecentCounts, RecentResults
from dispatcher.web.queue_page import MOST_TENANTS, QueueState

_EVERY: Final = 1.0
"""Seconds from one answer of the broker to the next question."""
_SHARE: Final = 10
"""A slow broker is asked less often: a tenth of the time, but every `_AT_LEAST_EVERY` seconds."""
_AT_LEAST_EVERY: Final = 5.0
_TIMEOUT: Final = 2.0
"""Seconds without an answer after which a queue's totals are not known."""

log = logging.getLogger(__name__)


class _BrokerAnswer(NamedTuple):
    """The broker's numbers of one queue, and what this process had counted when it was asked."""

    recent: RecentCounts
    totals: Totals
    backlog: Sequence[TenantBacklog]


class QueueStates:
    """`queues`: the queues that run. `front_door`: the queue behind the front door; None: there is none."""

    def __init__(
        self,
        queues: Callable[[], Mapping[str, RunningQueue]],
        recent: RecentResults,
        front_door: Callable[[], str | None],
    ) -> None:
        self._queues = queues
        self._recent = recent
        self._front_door = front_door
        self._answers: dict[str, _BrokerAnswer] = {}
        self._away: AbstractSet[str] = frozenset()
        self._next = 0.0
        self._limited_log = RateLimitedLog(log)
        self._task: asyncio.Task[None] | None = None

    async def aclose(self) -> None:
        if self._task is not None:
            await cancel_and_wait(self._task)

    def look(self) -> None:
        """Somebody looks: ask the broker if that is due."""
        if self._task is None and time.monotonic() >= self._next:
            self._task = asyncio.create_task(self._ask(), name="state of the queues")

    async def asked(self) -> None:
        """As `look`; returns when the broker has answered or is away."""
        self.look()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=_TIMEOUT)

    def states(self) -> list[QueueState]:
        """The present state, without I/O."""
        return [self._state(running) for _, running in sorted(self._queues().items())]

    def _in_flight_to(self, target: str) -> int:
        """Slots in use, without those that a pump holds for a moment while it asks its gate."""
        return sum(one.runner.in_flight for one in self._queues().values() if one.spec.target.name == target)

    async def _ask(self) -> None:
        started = time.monotonic()
        queues = dict(self._queues())
        try:
            found = await asyncio.gather(*(self._ask_one(running) for running in queues.values()))
            self._answers = {name: one for name, one in zip(queues, found, strict=True) if one is not None}
            self._away = queues.keys() - self._answers.keys()
        finally:
            now = time.monotonic()
            self._next = now + min(max(_EVERY, _SHARE * (now - started)), _AT_LEAST_EVERY)
            self._task = None

    async def _ask_one(self, running: RunningQueue) -> _BrokerAnswer | None:
        queue = running.runner.queue
        recent = self._recent_of(running)  # before the broker counts, so none of these is missing there
        try:
            async with asyncio.timeout(_TIMEOUT):
                return _BrokerAnswer(recent, await queue.totals(), await queue.backlog(MOST_TENANTS))
        except (QueueError, TimeoutError):
            return None
        except Exception as error:  # noqa: BLE001  # a broker of an installed package may raise anything
            self._limited_log.warning(
                "totals", "queue %s: its totals cannot be read: %r", running.spec.queue.name, error
            )
            return None

    def _recent_of(self, running: RunningQueue) -> RecentCounts:
        return self._recent.of(running.spec.queue.name, running.spec.target.name)

    def _state(self, running: RunningQueue) -> QueueState:
        spec, runner = running.spec, running.runner
        answer = self._answers.get(spec.queue.name)
        return QueueState(
            name=spec.queue.name,
            target=spec.target.name,
            gate=_types(spec.queue.gate),
            budget=runner.gate.budget(),
            slots=(self._in_flight_to(spec.target.name), spec.target.concurrency),
            in_flight=runner.in_flight,
            recent=self._recent_of(running) if answer is None else answer.recent,
            meters=meter_states(runner.gate),
            away=spec.queue.name in self._away,
            totals=None if answer is None else answer.totals,
            backlog=None if answer is None else answer.backlog,
            weights=spec.queue.weights,
            blocked_by=runner.pump.blocked_by,
            blocked_for=runner.pump.closed_gate_log.closed_for,
            blocked_tenants=runner.pump.blocked_tenants,
            front_door=self._front_door() == spec.queue.name,
        )


def _types(gate: Mapping[str, Any]) -> str:
    """The type of a gate of the configuration, and those of the gates in it."""
    given = gate.get("params") or {}
    inner = [*given.get("gates", ()), *([given["gate"]] if "gate" in given else ())]
    parts = ", ".join(_types(one) for one in inner if isinstance(one, Mapping))
    return f"{gate['type']} ({parts})" if parts else str(gate["type"])
