"""Models the LoRA adapters in an accelerator's memory: few slots, time to load, eviction of idle ones."""

from collections import Counter, OrderedDict


class AdapterSlots:
    """At most `slots` adapters at a time, each ready `load_seconds` after it was first requested."""

    def __init__(self, slots: int, load_seconds: float) -> None:
        self._slots = slots
        self._load_seconds = load_seconds
        self._ready_at: OrderedDict[str, float] = OrderedDict()  # least recently used first
        self._users: Counter[str] = Counter()

    def fork(self) -> "AdapterSlots":
        """A copy that goes on by itself."""
        copy = AdapterSlots(self._slots, self._load_seconds)
        copy._ready_at, copy._users = OrderedDict(self._ready_at), Counter(self._users)
        return copy

    def prepare(self, adapter: str, now: float) -> bool:
        """True if it can serve now. Otherwise it begins to load, if a slot is free or can be evicted."""
        ready_at = self._ready_at.get(adapter)
        if ready_at is not None:
            return ready_at <= now
        if len(self._ready_at) >= self._slots and not self._evict(now):
            return False
        self._ready_at[adapter] = now + self._load_seconds
        return self._load_seconds <= 0

    def use(self, adapter: str) -> None:
        """Count a request that runs with this adapter, which must not be evicted meanwhile."""
        self._users[adapter] += 1
        self._ready_at.move_to_end(adapter)

    def release(self, adapter: str) -> None:
        """End what `use` began; the adapter stays loaded until its slot is needed."""
        self._users[adapter] -= 1

    def loaded(self, now: float) -> tuple[str, ...]:
        """The names of the adapters that can serve now: `running_lora_adapters` of the model server protocol."""
        return tuple(sorted(adapter for adapter, ready_at in self._ready_at.items() if ready_at <= now))

    def next_ready(self, now: float) -> float | None:
        """When the next load completes; None if nothing loads."""
        return min((ready_at for ready_at in self._ready_at.values() if ready_at > now), default=None)

    def postpone(self, seconds: float) -> None:
        """Nothing was loaded for so long."""
        for adapter in self._ready_at:
            self._ready_at[adapter] += seconds

    def _evict(self, now: float) -> bool:
        for adapter, ready_at in self._ready_at.items():
            if ready_at <= now and not self._users[adapter]:
                del self._ready_at[adapter]
                return True
        return False
