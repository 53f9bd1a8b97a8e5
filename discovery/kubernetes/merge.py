"""The slices of one component merged into one set of candidates, each pod once. Pure: time is passed in.

Slices are written one at a time, so that for some milliseconds a pod may stand in two of them, or in none.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from discovery.instance import Instance, InstanceStatus
from discovery.kubernetes.endpointslice import Reading, SliceContent, read_slice, status_of
from discovery.kubernetes.wire import Endpoint, EndpointSlice
from discovery.source import Candidate, ComponentKey, Snapshot


@dataclass(frozen=True, slots=True, eq=False)
class Sighting:
    """A pod as one slice shows it."""

    content: SliceContent
    endpoint: Endpoint

    @property
    def uid(self) -> str:
        return self.endpoint.target_ref.uid if self.endpoint.target_ref is not None else ""


class MergedSet:
    """State is slice → endpoints; truth is what they say together. `grace`: seconds that a ready pod may be missing
    from all slices. One that is present and not available is no instance at once.
    """

    def __init__(self, key: ComponentKey, reading: Reading, grace: float) -> None:
        self._key = key
        self._reading = reading
        self._grace = grace
        self._contents: dict[str, SliceContent] = {}
        self._seen_in: dict[str, set[str]] = {}
        self._candidates: dict[str, tuple[Candidate, ...]] = {}
        self._missing: dict[str, float] = {}

    @property
    def due(self) -> float | None:
        """When `expire` has something to do next, if no slice comes before."""
        return min(self._missing.values(), default=None)

    def snapshot(self) -> Snapshot:
        strangers = (content.strangers for content in self._contents.values() if content.strangers)
        return Snapshot(tuple(chain.from_iterable(chain(self._candidates.values(), strangers))))

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
        after = self._contents[found.metadata.name] = read_slice(found, self._key, self._reading)
        return self._changed(before, after, found.metadata.name, now)

    def remove(self, name: str, now: float) -> bool:
        """A slice is gone; whether the set changed."""
        before = self._contents.pop(name, None)
        return before is not None and self._changed(before, None, name, now)

    def expire(self, now: float) -> bool:
        """Give up pods that have been missing for too long; whether the set changed."""
        gone = [pod for pod, deadline in self._missing.items() if deadline <= now]
        for pod in gone:
            del self._missing[pod], self._candidates[pod]
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
            self._seen_in.setdefault(pod, set()).add(name)
        for pod in old.keys() - new.keys():
            self._seen_in[pod].discard(name)
        pods = self._touched(before, after)
        judged = [self._judge(pod, now) for pod in pods]
        return any(judged) or (before.strangers if before else ()) != (after.strangers if after else ())

    def _touched(self, before: SliceContent | None, after: SliceContent | None) -> Iterator[str]:
        """The pods whose candidate may be another one now."""
        if before is None or after is None:
            yield from after.pods if after is not None else before.pods if before is not None else ()
            return
        alike = (before.port, before.rank, before.problem) == (after.port, after.rank, after.problem)
        for pod, endpoint in after.pods.items():
            if not alike or before.pods.get(pod) != endpoint or len(self._seen_in[pod]) > 1:
                yield pod
        yield from (pod for pod in before.pods if pod not in after.pods)

    def _judge(self, pod: str, now: float) -> bool:
        """Find the pod's candidates anew; whether they changed."""
        names = self._seen_in[pod]
        before = self._candidates.get(pod, ())
        if not names:
            del self._seen_in[pod]
            return self._miss(pod, before, now)
        self._missing.pop(pod, None)
        sightings = [Sighting(self._contents[name], self._contents[name].pods[pod]) for name in names]
        after = tuple(_candidates(pod, sightings, self._key))
        if after == before:
            return False
        self._candidates[pod] = after
        return True

    def _miss(self, pod: str, before: tuple[Candidate, ...], now: float) -> bool:
        if pod in self._missing:
            return False
        ready = [c for c in before if c.instance and c.instance.status is InstanceStatus.READY]
        if self._grace > 0 and ready:
            self._missing[pod] = now + self._grace
            return False
        return self._candidates.pop(pod, None) is not None


def _candidates(pod: str, sightings: list[Sighting], key: ComponentKey) -> Iterator[Candidate]:
    """The living pod of that name, and one candidate for each that it took the place of.

    A name is unique at any moment, so of several uids the one written last is alive. A pod in several slices is seen
    where its port is, in the preferred address family, as written last.
    """
    if len(sightings) == 1:
        yield _candidate(pod, sightings[0], key)
        return
    uid = max(sightings, key=_written_last).uid
    yield _candidate(pod, max((s for s in sightings if s.uid == uid), key=_seen_best), key)
    for other in sorted({s.uid for s in sightings} - {uid}):
        yield Candidate(pod, reason=f"its pod (uid {other}) was replaced by another of that name (uid {uid})")


def _written_last(sighting: Sighting) -> tuple[object, ...]:
    ready = status_of(sighting.endpoint) is InstanceStatus.READY
    return sighting.content.stamp, ready, sighting.uid


def _seen_best(sighting: Sighting) -> tuple[object, ...]:
    content = sighting.content
    return content.port is not None, -content.rank, content.stamp, content.slice.metadata.name


def _candidate(pod: str, sighting: Sighting, key: ComponentKey) -> Candidate:
    content, endpoint = sighting.content, sighting.endpoint
    if content.port is None or not endpoint.addresses:
        return Candidate(pod, reason=content.problem)
    instance = Instance(
        pod,
        key.namespace,
        key.component,
        endpoint.addresses[0],
        content.port,
        sighting.uid,
        status_of(endpoint),
        zone=endpoint.zone,
        node=endpoint.node_name,
    )
    return Candidate(pod, instance)
