"""The instances of one component, and those that are missing but not given up yet. Pure: time is passed in."""

from collections.abc import Iterable
from itertools import chain, islice
from typing import Final

from discovery.copy_on_write import CopyOnWriteDict
from discovery.instance import Instance
from discovery.source import Candidate, PersistentSnapshot, is_ready

_EXPIRED_AT_ONCE: Final = 1000


class InstanceSet:
    """`grace`: seconds that a ready instance may be missing. One that is shown as unavailable leaves at once."""

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._instances: CopyOnWriteDict[Instance] = CopyOnWriteDict()
        self._ready: CopyOnWriteDict[Instance] = CopyOnWriteDict()
        self._excluded: dict[str, tuple[Candidate, ...]] = {}
        self._missing: dict[str, float] = {}

    @property
    def expires_at(self) -> float | None:
        """When to call `expire` if nothing changes before."""
        return min(self._missing.values(), default=None)

    def snapshot(self, others: Iterable[Candidate] = ()) -> PersistentSnapshot:
        """`others`: candidates that belong to no instance."""
        excluded = chain(chain.from_iterable(self._excluded.values()), others)
        return PersistentSnapshot(self._instances.frozen(), self._ready.frozen(), excluded)

    def show(self, key: str, instance: Instance | None, excluded: tuple[Candidate, ...] = ()) -> bool:
        """`excluded`: candidates of that name that are no instances. Returns whether anything changed."""
        self._missing.pop(key, None)
        return self._store(key, instance, excluded)

    def miss(self, key: str, now: float) -> bool:
        """Nothing shows it any more. Returns whether anything changed."""
        if key in self._missing:
            return False
        if self._grace > 0 and is_ready(self._instances.get(key)):
            self._missing[key] = now + self._grace
            return False
        return self._store(key, None, ())

    def expire(self, now: float) -> bool:
        """Removes instances whose grace is over; returns whether there were any. A part of very many, so that the event loop
        is not held up: `expires_at` then stays in the past.
        """
        late = (key for key, deadline in self._missing.items() if deadline <= now)
        gone = list(islice(late, _EXPIRED_AT_ONCE))
        for key in gone:
            del self._missing[key]
            self._store(key, None, ())
        return bool(gone)

    def restart_grace(self, now: float) -> None:
        """The API server was lost until now: nothing could show us the missing instances."""
        self._missing = {key: max(deadline, now + self._grace) for key, deadline in self._missing.items()}

    def _store(self, key: str, instance: Instance | None, excluded: tuple[Candidate, ...]) -> bool:
        known = self._instances.get(key)
        if known == instance and self._excluded.get(key, ()) == excluded:
            return False
        if known != instance:
            _put(self._instances, key, instance)
            _put(self._ready, key, instance if is_ready(instance) else None)
        if excluded:
            self._excluded[key] = excluded
        else:
            self._excluded.pop(key, None)
        return True


def _put(into: CopyOnWriteDict[Instance], key: str, instance: Instance | None) -> None:
    if instance is not None:
        into[key] = instance
    else:
        into.pop(key, None)
