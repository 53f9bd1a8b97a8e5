"""The order of a queue: strict tiers first, weighted fair across tenants, earliest deadline first within a tenant (pure).

Fairness is start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996, https://doi.org/10.1145/248156.248171) with a cost
of 1 / weight for each request. A tenant's virtual time advances by that cost with every request served, and the tenant
with the least virtual time goes next. Two rules prevent abuse:

- A tenant that comes, or comes back, starts no earlier than the virtual time of the last one served. Otherwise an idle
  tenant would save up turns and then hold up everybody else.
- An empty tenant keeps its virtual time while it is ahead. Otherwise a tenant that always has one request at a time
  would start afresh with each and get more than its share.

`dispatcher/broker/redis/scripts/queue/part_order.lua` keeps the same order; a property test compares both.
"""

import bisect
import heapq
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from dispatcher.broker.contract.queue import TenantBacklog, by_tenant

IDLE_TENANTS_KEPT: Final = 16
"""Tenants without requests whose virtual time is kept before a cleanup, beside one for each waiting tenant."""


class Timeline:
    """Numbers sorted by a time, then by themselves."""

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
        """The numbers at `now` or earlier; they stay."""
        return [number for _, number in self._items[: bisect.bisect_right(self._items, (now, 2**63))]]

    def first(self) -> int | None:
        """The earliest time, or None if there are no items."""
        return self._items[0][0] if self._items else None


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """The key that decides the place of one request. `number`: counts submissions, and breaks ties of the deadline."""

    tier: int
    tenant: str
    deadline_ms: int
    number: int


@dataclass(slots=True)
class _Tier:
    waiting: dict[str, Timeline] = field(default_factory=dict)
    virtual_times: dict[str, float] = field(default_factory=dict)
    """By tenant, also of tenants without requests that are ahead of `virtual_now`."""
    virtual_now: float = 0.0
    """The virtual time at which the last request was served."""

    def forget_idle(self) -> None:
        """Drop tenants without requests that are not ahead: they would start at `virtual_now` anyway."""
        self.virtual_times = {
            tenant: at
            for tenant, at in self.virtual_times.items()
            if tenant in self.waiting or at > self.virtual_now
        }


class FairOrder:
    """The requests of one queue that may be claimed."""

    def __init__(self) -> None:
        self.weights: Mapping[str, float] = {}
        self._tiers: dict[int, _Tier] = {}

    def add(self, position: QueuePosition, credit: float = 0.0) -> None:
        """`credit`: the cost that `serve` charged, if the request comes back unused: its tenant gets the turn back."""
        tier = self._tiers.setdefault(position.tier, _Tier())
        if position.tenant not in tier.waiting:
            tier.waiting[position.tenant] = Timeline()
            tier.virtual_times[position.tenant] = max(
                tier.virtual_times.get(position.tenant, 0.0), tier.virtual_now
            )
        tier.virtual_times[position.tenant] -= credit
        tier.waiting[position.tenant].add(position.deadline_ms, position.number)

    def remove(self, position: QueuePosition) -> None:
        """Remove a request that was not served, at no cost for its tenant."""
        tier = self._tiers[position.tier]
        line = tier.waiting[position.tenant]
        line.discard(position.deadline_ms, position.number)
        if not line:
            del tier.waiting[position.tenant]

    def serve(self, position: QueuePosition) -> float:
        """Remove a request and charge its tenant; returns the cost."""
        tier = self._tiers[position.tier]
        cost = self._cost(position.tenant)
        tier.virtual_now = max(tier.virtual_now, tier.virtual_times[position.tenant])
        tier.virtual_times[position.tenant] += cost
        self.remove(position)
        if len(tier.virtual_times) > 2 * len(tier.waiting) + IDLE_TENANTS_KEPT:
            tier.forget_idle()
        return cost

    def peek(self, limit: int, skip: Collection[str]) -> list[QueuePosition]:
        """The next `limit` requests in the order in which they would be served, without the tenants in `skip`."""
        chosen: list[QueuePosition] = []
        for tier in sorted(self._tiers):
            for position in self._in_order(tier, skip):
                if len(chosen) == limit:
                    return chosen
                chosen.append(position)
        return chosen

    def backlog(self, limit: int) -> list[TenantBacklog]:
        """At most `limit` lines of tenants, by turn; a tenant of several tiers counts once."""
        lines: list[TenantBacklog] = []
        for _, tier in sorted(self._tiers.items()):
            for tenant in sorted(tier.waiting, key=lambda tenant: (tier.virtual_times[tenant], tenant)):
                if len(lines) == limit:
                    break
                line = tier.waiting[tenant]
                lines.append(TenantBacklog(tenant, len(line), line[0][0]))
        return by_tenant(lines)

    def _in_order(self, name: int, skip: Collection[str]) -> Iterator[QueuePosition]:
        """A heap of tenants by virtual time, each with the index of its next request; nothing is charged."""
        tier = self._tiers[name]
        turns = [(tier.virtual_times[tenant], tenant, 0) for tenant in tier.waiting if tenant not in skip]
        heapq.heapify(turns)
        while turns:
            at, tenant, index = turns[0]
            line = tier.waiting[tenant]
            deadline, number = line[index]
            if index + 1 < len(line):
                heapq.heapreplace(turns, (at + self._cost(tenant), tenant, index + 1))
            else:
                heapq.heappop(turns)
            yield QueuePosition(name, tenant, deadline, number)

    def _cost(self, tenant: str) -> float:
        return 1.0 / self.weights.get(tenant, 1.0)
