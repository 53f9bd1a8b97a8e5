"""The slices of one component merged into one set of candidates, each pod once. Pure: time is passed in.

Slices are written one at a time, so that for some milliseconds a pod may stand in two of them, or in none.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, compress, islice
from operator import is_not
from typing import Final

from discovery.copy_on_write import CopyOnWriteDict
from discovery.instance import Instance, InstanceStatus, MetadataReader
from discovery.kubernetes.endpointslice import SliceContent, SliceReading, read_slice, status_of
from discovery.kubernetes.wire import EndpointSlice, SliceEndpoint
from discovery.source import Candidate, ComponentKey, PersistentSnapshot, is_ready

_GIVEN_UP: Final = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Sighting:
    """A pod as one slice shows it."""

    content: SliceContent
    endpoint: SliceEndpoint

    @property
    def uid(self) -> str:
        return self.endpoint.target_ref.uid if self.endpoint.target_ref is not None else ""


class MergedSet:
    """State is slice → endpoints; truth is what they say together. `grace`: seconds that a ready pod may be missing
    from all slices. One that is present and not available is no instance at once. `reader`: that of all instances.
    """

    def __init__(
        self, key: ComponentKey, reading: SliceReading, grace: float, reader: MetadataReader | None = None
    ) -> None:
        self._key = key
        self._reading = reading
        self._grace = grace
        self._reader = reader
        self._contents: dict[str, SliceContent] = {}
        self._seen_in: dict[str, set[str]] = {}
        self._seen_twice: set[str] = set()
        self._known: CopyOnWriteDict[Instance] = CopyOnWriteDict()
        self._ready: CopyOnWriteDict[Instance] = CopyOnWriteDict()
        self._others: dict[str, tuple[Candidate, ...]] = {}
        self._missing: dict[str, float] = {}

    @property
    def due(self) -> float | None:
        """When `expire` has something to do next, if no slice comes before."""
        return min(self._missing.values(), default=None)

    def snapshot(self) -> PersistentSnapshot:
        strangers = (content.strangers for content in self._contents.values() if content.strangers)
        others = chain.from_iterable(chain(self._others.values(), strangers))
        return PersistentSnapshot(self._known.frozen(), self._ready.frozen(), others)

    def replace(self, slices: Iterable[EndpointSlice], now: float) -> Iterator[bool]:
        """All slices there are, in as many steps as there are slices, so that others may run between them; each step
        says whether it changed the set. What is there comes first: a pod that moved is never missing.
        """
        gone = set(self._contents)
        for found in slices:
            gone.discard(found.metadata.name)
            yield self.put(found, now)
        for name in gone:
            yield self.remove(name, now)

    def put(self, found: EndpointSlice, now: float) -> bool:
        """A slice as it is now; whether the set changed."""
        before = self._contents.get(found.metadata.name)
        if before is not None and before.slice == found:
            return False
        after = self._contents[found.metadata.name] = read_slice(found, self._key, self._reading, before)
        return self._changed(before, after, found.metadata.name, now)

    def remove(self, name: str, now: float) -> bool:
        """A slice is gone; whether the set changed."""
        before = self._contents.pop(name, None)
        return before is not None and self._changed(before, None, name, now)

    def expire(self, now: float) -> bool:
        """Give up pods that have been missing for too long; whether the set changed. Of very many some, so that the
        loop is not held up: `due` is then in the past still.
        """
        late = (pod for pod, deadline in self._missing.items() if deadline <= now)
        gone = list(islice(late, _GIVEN_UP))
        for pod in gone:
            del self._missing[pod]
            self._tell(pod, None, ())
        return bool(gone)

    def wait_anew(self, now: float) -> None:
        """Contact was lost and is back: nobody could show us the missing pods meanwhile."""
        self._missing = {pod: max(deadline, now + self._grace) for pod, deadline in self._missing.items()}

    def _changed(
        self, before: SliceContent | None, after: SliceContent | None, name: str, now: float
    ) -> bool:
        old = before.pods if before is not None else {}
        new = after.pods if after is not None else {}
        for pod in new.keys() - old.keys():
            self._see(pod, name)
        for pod in old.keys() - new.keys():
            self._seen_in[pod].discard(name)
            if len(self._seen_in[pod]) < 2:
                self._seen_twice.discard(pod)
        judged = [self._judge(pod, now) for pod in self._touched(before, after)]
        return any(judged) or (before.strangers if before else ()) != (after.strangers if after else ())

    def _see(self, pod: str, name: str) -> None:
        names = self._seen_in.setdefault(pod, set())
        names.add(name)
        if len(names) > 1:
            self._seen_twice.add(pod)

    def _touched(self, before: SliceContent | None, after: SliceContent | None) -> Iterable[str]:
        """The pods whose candidate may be another one now."""
        if before is None or after is None:
            return after.pods if after is not None else before.pods if before is not None else ()
        if (before.port, before.ports, before.rank, before.problem) != (
            after.port,
            after.ports,
            after.rank,
            after.problem,
        ):
            return before.pods.keys() | after.pods.keys()
        others = compress(after.pods, map(is_not, map(before.pods.get, after.pods), after.pods.values()))
        return {*others, *(before.pods.keys() - after.pods.keys()), *(self._seen_twice & after.pods.keys())}

    def _judge(self, pod: str, now: float) -> bool:
        """Find the pod's candidates anew; whether they changed."""
        names = self._seen_in[pod]
        if not names:
            del self._seen_in[pod]
            return self._miss(pod, now)
        self._missing.pop(pod, None)
        sightings = [Sighting(self._contents[name], self._contents[name].pods[pod]) for name in names]
        best, replaced = (sightings[0], ()) if len(sightings) == 1 else _living(pod, sightings)
        instance = self._instance(pod, best)
        if instance is None:
            return self._tell(pod, None, (Candidate(pod, reason=best.content.problem), *replaced))
        return self._tell(pod, instance, replaced)

    def _miss(self, pod: str, now: float) -> bool:
        if pod in self._missing:
            return False
        if self._grace > 0 and is_ready(self._known.get(pod)):
            self._missing[pod] = now + self._grace
            return False
        return self._tell(pod, None, ())

    def _tell(self, pod: str, instance: Instance | None, others: tuple[Candidate, ...]) -> bool:
        """What the pod is from now on, and what there is to say beside; whether that is news."""
        known = self._known.get(pod)
        if known == instance and self._others.get(pod, ()) == others:
            return False
        if known != instance:
            _put(self._known, pod, instance)
            _put(self._ready, pod, instance if is_ready(instance) else None)
        if others:
            self._others[pod] = others
        else:
            self._others.pop(pod, None)
        return True

    def _instance(self, pod: str, sighting: Sighting) -> Instance | None:
        content, endpoint = sighting.content, sighting.endpoint
        if content.port is None or not endpoint.addresses:
            return None
        return Instance(
            pod,
            self._key.namespace,
            self._key.component,
            endpoint.addresses[0],
            content.port,
            sighting.uid,
            status_of(endpoint),
            zone=endpoint.zone,
            node=endpoint.node_name,
            ports=content.ports,
            reader=self._reader,
        )


def _put(into: CopyOnWriteDict[Instance], pod: str, instance: Instance | None) -> None:
    if instance is not None:
        into[pod] = instance
    else:
        into.pop(pod, None)


def _living(pod: str, sightings: list[Sighting]) -> tuple[Sighting, tuple[Candidate, ...]]:
    """The living pod of that name, and one candidate for each that it took the place of.

    A name is unique at any moment, so of several uids the one written last is alive. A pod in several slices is seen
    where its port is, in the preferred address family, as written last.
    """
    uid = max(sightings, key=_written_last).uid
    replaced = [
        Candidate(pod, reason=f"its pod (uid {other}) was replaced by another of that name (uid {uid})")
        for other in sorted({s.uid for s in sightings} - {uid})
    ]
    return max((s for s in sightings if s.uid == uid), key=_seen_best), tuple(replaced)


def _written_last(sighting: Sighting) -> tuple[object, ...]:
    ready = status_of(sighting.endpoint) is InstanceStatus.READY
    return sighting.content.stamp, ready, sighting.uid


def _seen_best(sighting: Sighting) -> tuple[object, ...]:
    content = sighting.content
    return content.port is not None, -content.rank, content.stamp, content.slice.metadata.name
