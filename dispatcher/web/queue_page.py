"""The dispatcher's page of its queues, as JSON: counts and reasons, never a payload (pure)."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from math import isfinite
from typing import Any, Final

from dispatcher.broker.contract.queue import TenantBacklog, Totals
from dispatcher.gates.metering.meter import MeterState
from dispatcher.telemetry.recent_results import STEP, STEPS, RecentCounts

MOST_TENANTS: Final = 100
"""Tenants of one queue that are shown."""
CLOSED_LONG: Final = 5.0
"""Seconds after which a closed gate counts although requests are in flight: one that lets through what there is room for
closes again and again."""
LONGEST_TEXT: Final = 300
"""Characters of a reason or a name that are shown."""


class QueueActivity(StrEnum):
    """The state of a queue, in this process."""

    SENDING = "sending"
    IDLE = "idle"
    """Nothing waits."""
    WAITING = "waiting"
    """Its gate lets nothing pass, every slot is in use, or all that waits has failed and is tried again later."""
    AWAY = "away"
    """The broker does not answer."""
    UNKNOWN = "unknown"
    """The broker was not asked yet."""


@dataclass(frozen=True, slots=True)
class QueueState:
    """One queue, as it is now. Times are in seconds.

    `gate`: the types of its gates. `totals`, `backlog` None: not known; `away`: the broker did not answer. `blocked_by`: why
    nothing is sent, empty if something is or nothing waits; `blocked_for`: how long the gate has been closed.
    `blocked_tenants`: why their requests wait, by tenant. `slots`: in use by all queues of the target, and how many there are.
    """

    name: str
    target: str
    gate: str
    budget: float
    slots: tuple[int, int]
    in_flight: int
    recent: RecentCounts
    meters: Sequence[MeterState] = ()
    away: bool = False
    totals: Totals | None = None
    backlog: Sequence[TenantBacklog] | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    blocked_by: str = ""
    blocked_for: float | None = None
    blocked_tenants: Mapping[str, str] = field(default_factory=dict)
    front_door: bool = False

    @property
    def activity(self) -> QueueActivity:
        if self.away:
            return QueueActivity.AWAY
        closes_shortly = self.in_flight and (self.blocked_for or 0.0) < CLOSED_LONG
        if self.blocked_by and not closes_shortly:
            return QueueActivity.WAITING
        if self.in_flight:
            return QueueActivity.SENDING
        if self.totals is None:
            return QueueActivity.UNKNOWN
        waits = self.totals.pending > self.totals.claimed
        return QueueActivity.WAITING if waits else QueueActivity.IDLE

    @property
    def waits_for(self) -> str:
        """Why its requests wait; empty if they do not."""
        if self.activity is not QueueActivity.WAITING:
            return ""
        if self.blocked_by:
            return self.blocked_by
        in_use, limit = self.slots
        if in_use >= limit:
            return f"a free slot: all {limit} of the target {self.target} are in use"
        if self.blocked_tenants:
            return next(iter(self.blocked_tenants.values()))
        if self.totals is not None and self.totals.pending == self.totals.claimed + self.totals.delayed:
            return "the next attempt, after one that failed"
        return "its turn"


def queues_document(queues: Sequence[QueueState], now: float, problem: str) -> dict[str, Any]:
    """The page as JSON, its times in Unix seconds. `now`: such a time. `problem`: why it is not ready; empty if it is."""
    return {
        "problem": _cut(problem),
        "recent": {"seconds": STEP * STEPS, "steps": STEPS},
        "queues": [_queue(queue, now) for queue in queues],
        "gates": [_gate(queue, meter) for queue in queues for meter in queue.meters or (None,)],
        "tenants": [row for queue in queues for row in _tenants(queue)],
    }


def _queue(queue: QueueState, now: float) -> dict[str, Any]:
    in_use, limit = queue.slots
    return {
        "name": queue.name,
        "target": queue.target,
        "activity": queue.activity,
        "waits_for": _cut(queue.waits_for) or None,
        "closed_since": None if queue.blocked_for is None else round(now - queue.blocked_for),
        "budget": _finite(queue.budget),
        "slots": {"in_use": in_use, "limit": limit},
        "in_flight": queue.in_flight,
        "front_door": queue.front_door,
        "totals": None if queue.totals is None else asdict(queue.totals),
        "recent": queue.recent.counts,
        "latency": queue.recent.latency,
        "steps": queue.recent.steps,
    }


def _gate(queue: QueueState, meter: MeterState | None) -> dict[str, Any]:
    """`meter` None: it reads no metric."""
    return {
        "queue": queue.name,
        "gate": _cut(queue.gate),
        "source": None if meter is None else _cut(meter.name),
        "value": None if meter is None else _finite(meter.value),
        "closes_at": None if meter is None else _finite(meter.threshold),
        "available": None if meter is None else meter.available,
        "reason": None if meter is None else _cut(meter.reason) or None,
    }


def _tenants(queue: QueueState) -> list[dict[str, Any]]:
    waiting = {one.tenant: one for one in queue.backlog or ()}
    names = list(dict.fromkeys([*waiting, *queue.blocked_tenants]))[:MOST_TENANTS]
    return [
        {
            "queue": queue.name,
            "tenant": _cut(name),
            "waiting": waiting[name].waiting if name in waiting else 0,
            "earliest_deadline": waiting[name].deadline_ms / 1000 if name in waiting else None,
            "weight": queue.weights.get(name, 1.0),
            "waits_for": _cut(queue.blocked_tenants.get(name, "")) or None,
        }
        for name in names
    ]


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and isfinite(value) else None


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"
