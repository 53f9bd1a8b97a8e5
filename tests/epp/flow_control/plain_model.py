"""Flow control as plain as can be: one list of what waits, searched from end to end for each decision."""

from collections import Counter
from dataclasses import dataclass, field

from epp.flow_control.settings import FlowControlSettings, PriorityBand


@dataclass
class Waits:
    name: str
    priority: int
    fairness_id: str
    arrived_at: float
    size: int
    slo: float
    """When its first token is due; inf: it does not say."""


@dataclass
class PlainModel:
    """`ordering`: fcfs, edf or slo. `turns`: flows take turns. `per_worker`: requests that one worker should have.

    `outcomes`: how each request ended its wait or did not wait at all, in order.
    """

    settings: FlowControlSettings
    ordering: str
    turns: bool
    per_worker: int
    workers: dict[str, int] = field(default_factory=dict)
    """What each has in flight."""
    waiting: list[Waits] = field(default_factory=list)
    last: dict[int, str] = field(default_factory=dict)
    empty_changed_at: float = float("-inf")
    outcomes: list[tuple[str, str]] = field(default_factory=list)

    @property
    def saturation(self) -> float:
        return sum(self.workers.values()) / (self.per_worker * len(self.workers)) if self.workers else 1.0

    def ceiling(self, priority: int) -> float:
        return 0.5 if priority < 0 else 1.0

    def band(self, priority: int) -> PriorityBand:
        default = self.settings.default_band
        if priority < 0 and self.settings.default_negative_band is not None:
            default = self.settings.default_negative_band
        return self.settings.bands.get(priority, default)

    def arrives(self, one: Waits) -> bool:
        """Whether it goes at once."""
        blocked = any(other.priority >= one.priority for other in self.waiting)
        if self.workers and not blocked and self.saturation < self.ceiling(one.priority):
            self.outcomes.append((one.name, "at once"))
            return True
        if self._fits(one) or self._evicts_for(one) or self._gives_way_to(one):
            self.waiting.append(one)
        else:
            self.outcomes.append((one.name, "full" if self.workers else "full and empty"))
        return False

    def leaves(self, name: str) -> None:
        for one in [one for one in self.waiting if one.name == name]:
            self._remove(one)

    def _remove(self, one: Waits) -> None:
        self.waiting.remove(one)

    def next_expiry(self) -> float | None:
        ttl = self.settings.request_ttl if self.workers else self.settings.no_endpoint_ttl
        return min((self._over_at(one, ttl) for one in self.waiting), default=None)

    def _over_at(self, one: Waits, ttl: float) -> float:
        longest = 2.0 * (self.settings.request_ttl + self.settings.no_endpoint_ttl)
        return min(max(one.arrived_at, self.empty_changed_at) + ttl, one.arrived_at + longest)

    def expires(self, now: float) -> None:
        ttl = self.settings.request_ttl if self.workers else self.settings.no_endpoint_ttl
        over = [one for one in self.waiting if self._over_at(one, ttl) <= now]
        for one in sorted(over, key=lambda one: -one.priority):  # bands in order, and each as they came
            self._remove(one)
            self.outcomes.append((one.name, "expired" if self.workers else "no endpoint"))

    def next(self) -> Waits | None:
        """The one that goes now, if there is room for it."""
        if not self.waiting:
            return None
        highest = max(one.priority for one in self.waiting)
        if self.saturation >= self.ceiling(highest):
            return None
        band = [one for one in self.waiting if one.priority == highest]
        if self.turns:
            ids = sorted({one.fairness_id for one in band})
            later = [one for one in ids if one > self.last.get(highest, "")]
            self.last[highest] = (later or ids)[0]
            band = [one for one in band if one.fairness_id == self.last[highest]]
        goes = min(band, key=self._rank)  # of equal ones the first in the list, which came first
        self._remove(goes)
        self.outcomes.append((goes.name, "dispatched"))
        return goes

    def _rank(self, one: Waits) -> float:
        if self.ordering == "edf":
            return one.arrived_at + self.settings.request_ttl
        return one.slo if self.ordering == "slo" else 0.0

    def _fits(self, one: Waits) -> bool:
        return self._fits_band(one) and self._fits_all(one, self.waiting)

    def _fits_band(self, one: Waits) -> bool:
        band, limits = (
            [other for other in self.waiting if other.priority == one.priority],
            self.band(one.priority),
        )
        return len(band) < limits.max_requests and sum(o.size for o in band) + one.size <= limits.max_bytes

    def _fits_all(self, one: Waits, waiting: list[Waits]) -> bool:
        count, size = self.settings.max_requests, self.settings.max_bytes
        return (count is None or len(waiting) < count) and (
            size is None or sum(other.size for other in waiting) + one.size <= size
        )

    def _evicts_for(self, one: Waits) -> bool:
        if not self.settings.eviction or one.priority < 0 or not self._fits_band(one):
            return False
        left, gone = list(self.waiting), []
        while not self._fits_all(one, left):
            sheddable = [other for other in left if other.priority < 0]
            if not sheddable:
                return False
            lowest = min(other.priority for other in sheddable)
            victim = [other for other in sheddable if other.priority == lowest][-1]
            left.remove(victim)
            gone.append((victim.name, "evicted"))
        for name, _ in gone:
            self.leaves(name)
        self.outcomes += gone
        return True

    def _gives_way_to(self, one: Waits) -> bool:
        """Where flows take turns: the newest of the longest flow, of equally long ones of the first by name.

        Where there are too many bytes and not too many requests: the newest ones of the flow with most bytes.
        """
        band = [other for other in self.waiting if other.priority == one.priority]
        if not self.turns or not band:
            return False
        limits = self.band(one.priority)
        if len(band) < limits.max_requests and len(self.waiting) < (self.settings.max_requests or 10**9):
            return self._bytes_give_way_to(one, band)
        lengths = Counter(other.fairness_id for other in band)
        longest = min(lengths, key=lambda name: (-lengths[name], name))
        if lengths[longest] <= lengths[one.fairness_id] + 1:
            return False
        victim = [other for other in band if other.fairness_id == longest][-1]
        left = [other for other in band if other is not victim]
        fits = len(left) < limits.max_requests and sum(o.size for o in left) + one.size <= limits.max_bytes
        if not fits or not self._fits_all(one, [other for other in self.waiting if other is not victim]):
            return False
        self._remove(victim)
        self.outcomes.append((victim.name, "evicted"))
        return True

    def _bytes_give_way_to(self, one: Waits, band: list[Waits]) -> bool:
        held = Counter[str]()
        for other in band:
            held[other.fairness_id] += other.size
        heaviest = min(held, key=lambda name: (-held[name], name))
        if held[heaviest] <= held[one.fairness_id] + one.size:
            return False
        victims: list[Waits] = []
        for other in reversed([other for other in band if other.fairness_id == heaviest]):
            victims.append(other)
            stay = [other for other in self.waiting if other not in victims]
            of_band = sum(other.size for other in stay if other.priority == one.priority)
            if of_band + one.size <= self.band(one.priority).max_bytes and self._fits_all(one, stay):
                break
            if len(victims) == 16:
                return False
        else:
            return False
        for victim in victims:
            self._remove(victim)
            self.outcomes.append((victim.name, "evicted"))
        return True
