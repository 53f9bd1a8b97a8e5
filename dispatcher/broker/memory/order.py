"""Who goes next: earliest deadline first within a tenant, weighted fair across tenants, tiers before both (pure).

Fairness is by virtual time: a tenant's advances by 1 / weight with each request taken, and the smallest goes next. A
tenant that comes, or comes back, starts no earlier than the last one that was served; so nobody saves up a turn, and a
tenant with one request at a time gets no more than its share. `dispatcher/broker/redis/scripts/queue/part_order.lua` keeps the same order.
"""

import bisect
import heapq
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

MANY: Final = 16
"""Tenants that are gone and still remembered, before somebody looks."""


class Timeline:
    """Numbers in the order of a time, then of themselves."""

    def __init__(self) -> None:
        self._items: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> tuple[int, int]:
        return self._items[index]

    def add(self, at: int, number: int) -> None:
        bisect.insort(self._items, (at, number))

    def discard(self, at: int, number: int) -> bool:
        """Whether it was there."""
        index = bisect.bisect_left(self._items, (at, number))
        found = self._items[index : index + 1] == [(at, number)]
        if found:
            del self._items[index]
        return found

    def due(self, now: int) -> list[int]:
        """Those whose time has come; they stay."""
        return [number for _, number in self._items[: bisect.bisect_right(self._items, (now, 2**63))]]

    def first(self) -> int | None:
        return self._items[0][0] if self._items else None


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """Where one request stands; `number`: its arrival."""

    tier: int
    tenant: str
    deadline_ms: int
    number: int


@dataclass(slots=True)
class _Tier:
    waiting: dict[str, Timeline] = field(default_factory=dict)
    served: dict[str, float] = field(default_factory=dict)
    """Tenant → virtual time; kept for an empty tenant while it is ahead of `now`."""
    now: float = 0.0

    def forget_idle(self) -> None:
        """Drop the virtual time of those who are gone and not ahead: they would start at `now` anyway."""
        self.served = {
            tenant: at for tenant, at in self.served.items() if tenant in self.waiting or at > self.now
        }


class FairOrder:
    """The requests of one queue that may be claimed."""

    def __init__(self) -> None:
        self.weights: Mapping[str, float] = {}
        self._tiers: dict[int, _Tier] = {}

    def put(self, place: QueuePosition, credit: float = 0.0) -> None:
        """Let it wait; `credit`: what `take` charged, where it was not used."""
        tier = self._tiers.setdefault(place.tier, _Tier())
        if place.tenant not in tier.waiting:
            tier.waiting[place.tenant] = Timeline()
            tier.served[place.tenant] = max(tier.served.get(place.tenant, 0.0), tier.now)
        tier.served[place.tenant] -= credit
        tier.waiting[place.tenant].add(place.deadline_ms, place.number)

    def drop(self, place: QueuePosition) -> None:
        """It waits no longer, and was not served."""
        tier = self._tiers[place.tier]
        line = tier.waiting[place.tenant]
        line.discard(place.deadline_ms, place.number)
        if not line:
            del tier.waiting[place.tenant]

    def take(self, place: QueuePosition) -> float:
        """It is served; what its tenant is charged."""
        tier = self._tiers[place.tier]
        charge = self._charge(place.tenant)
        tier.now = max(tier.now, tier.served[place.tenant])
        tier.served[place.tenant] += charge
        self.drop(place)
        if len(tier.served) > 2 * len(tier.waiting) + MANY:
            tier.forget_idle()
        return charge

    def next(self, limit: int, skip: Collection[str]) -> list[QueuePosition]:
        """The next `limit` places in the order in which they would be taken."""
        chosen: list[QueuePosition] = []
        for name in sorted(self._tiers):
            for place in self._of_tier(name, skip):
                if len(chosen) == limit:
                    return chosen
                chosen.append(place)
        return chosen

    def _of_tier(self, name: int, skip: Collection[str]) -> Iterator[QueuePosition]:
        tier = self._tiers[name]
        turns = [(tier.served[tenant], tenant, 0) for tenant in tier.waiting if tenant not in skip]
        heapq.heapify(turns)
        while turns:
            at, tenant, index = turns[0]
            line = tier.waiting[tenant]
            deadline, number = line[index]
            if index + 1 < len(line):
                heapq.heapreplace(turns, (at + self._charge(tenant), tenant, index + 1))
            else:
                heapq.heappop(turns)
            yield QueuePosition(name, tenant, deadline, number)

    def _charge(self, tenant: str) -> float:
        return 1.0 / self.weights.get(tenant, 1.0)
