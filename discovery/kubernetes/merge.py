"""Merges the slices of one component into one set of candidates, each pod once. Pure: time is passed in.

A pod may be in several slices at once, or in none for some milliseconds: the EndpointSlice controller moves endpoints
by several writes, and each slice arrives as an event of its own ("Duplicate endpoints" in Kubernetes' page on
EndpointSlices). So no event of a single slice says that a pod came or went: only all slices together do.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, compress
from operator import is_not

from discovery.instance import Instance, InstanceStatus, MetadataReader
from discovery.kubernetes.endpointslice import AddressSelection, ParsedSlice, parse_slice, status_of
from discovery.kubernetes.instance_set import InstanceSet
from discovery.kubernetes.wire import EndpointSlice, SliceEndpoint
from discovery.source import Candidate, ComponentKey, PersistentSnapshot


@dataclass(frozen=True, slots=True, eq=False)
class PodEndpoint:
    """A pod as one slice shows it."""

    slice: ParsedSlice
    endpoint: SliceEndpoint

    @property
    def uid(self) -> str:
        return self.endpoint.target_ref.uid if self.endpoint.target_ref is not None else ""


class MergedSet:
    """`grace`: seconds that a ready pod may be missing from all slices. A pod that a slice shows as unavailable leaves
    at once. `reader`: for each Instance.
    """

    def __init__(
        self,
        key: ComponentKey,
        address_selection: AddressSelection,
        grace: float,
        reader: MetadataReader | None = None,
    ) -> None:
        self._key = key
        self._address_selection = address_selection
        self._reader = reader
        self._slices: dict[str, ParsedSlice] = {}
        self._slices_of: dict[str, set[str]] = {}
        self._in_several: set[str] = set()
        self._instances = InstanceSet(grace)

    @property
    def expires_at(self) -> float | None:
        """When to call `expire` if no slice changes before."""
        return self._instances.expires_at

    def snapshot(self) -> PersistentSnapshot:
        without_pod = (parsed.excluded for parsed in self._slices.values() if parsed.excluded)
        return self._instances.snapshot(chain.from_iterable(without_pod))

    def replace(self, slices: Iterable[EndpointSlice], now: float) -> Iterator[bool]:
        """Replaces all slices, one at each step of the iterator, so that the caller may let other tasks run between
        them. Each step says whether the set changed.
        """
        # Slices are removed last: a pod that moved to another slice is never missing
        gone = set(self._slices)
        for found in slices:
            gone.discard(found.metadata.name)
            yield self.put(found, now)
        for name in gone:
            yield self.remove(name, now)

    def put(self, found: EndpointSlice, now: float) -> bool:
        """Adds or replaces a slice; returns whether the set changed."""
        name = found.metadata.name
        before = self._slices.get(name)
        if before is not None and before.slice == found:
            return False
        after = self._slices[name] = parse_slice(found, self._key, self._address_selection, before)
        return self._slice_changed(before, after, name, now)

    def remove(self, name: str, now: float) -> bool:
        """Returns whether the set changed."""
        before = self._slices.pop(name, None)
        return before is not None and self._slice_changed(before, None, name, now)

    def expire(self, now: float) -> bool:
        return self._instances.expire(now)

    def restart_grace(self, now: float) -> None:
        self._instances.restart_grace(now)

    def _slice_changed(
        self, before: ParsedSlice | None, after: ParsedSlice | None, name: str, now: float
    ) -> bool:
        old = before.pods if before is not None else {}
        new = after.pods if after is not None else {}
        for pod in new.keys() - old.keys():
            self._add_slice(pod, name)
        for pod in old.keys() - new.keys():
            self._slices_of[pod].discard(name)
            if len(self._slices_of[pod]) < 2:
                self._in_several.discard(pod)
        changes = [self._update_pod(pod, now) for pod in self._affected_pods(before, after)]
        return any(changes) or (before.excluded if before else ()) != (after.excluded if after else ())

    def _add_slice(self, pod: str, name: str) -> None:
        names = self._slices_of.setdefault(pod, set())
        names.add(name)
        if len(names) > 1:
            self._in_several.add(pod)

    def _affected_pods(self, before: ParsedSlice | None, after: ParsedSlice | None) -> Iterable[str]:
        if before is None or after is None:
            return after.pods if after is not None else before.pods if before is not None else ()
        if (before.port, before.ports, before.family_rank, before.problem) != (
            after.port,
            after.ports,
            after.family_rank,
            after.problem,
        ):
            return before.pods.keys() | after.pods.keys()
        changed = compress(after.pods, map(is_not, map(before.pods.get, after.pods), after.pods.values()))
        # The slice's new version may make it the preferred one of a pod that is in several
        return {*changed, *(before.pods.keys() - after.pods.keys()), *(self._in_several & after.pods.keys())}

    def _update_pod(self, pod: str, now: float) -> bool:
        names = self._slices_of[pod]
        if not names:
            del self._slices_of[pod]
            return self._instances.miss(pod, now)
        shown = [PodEndpoint(self._slices[name], self._slices[name].pods[pod]) for name in names]
        best, replaced = (shown[0], ()) if len(shown) == 1 else _choose(pod, shown)
        instance = self._instance(pod, best)
        if instance is None:
            return self._instances.show(pod, None, (Candidate(pod, reason=best.slice.problem), *replaced))
        return self._instances.show(pod, instance, replaced)

    def _instance(self, pod: str, shown: PodEndpoint) -> Instance | None:
        parsed, endpoint = shown.slice, shown.endpoint
        if parsed.port is None or not endpoint.addresses:
            return None
        return Instance(
            pod,
            self._key.namespace,
            self._key.component,
            endpoint.addresses[0],  # the API defines no meaning for further ones
            parsed.port,
            shown.uid,
            status_of(endpoint),
            zone=endpoint.zone,
            node=endpoint.node_name,
            ports=parsed.ports,
            reader=self._reader,
        )


def _choose(pod: str, shown: list[PodEndpoint]) -> tuple[PodEndpoint, tuple[Candidate, ...]]:
    """The endpoint that counts, and a candidate for each pod that it replaced.

    A pod's name is unique at any moment, so that of several UIDs the one in the slice written last is alive (a
    StatefulSet gives a new pod the old name). Of the slices with that UID, the first has the wanted port, then the
    preferred address family, then the latest version.
    """
    uid = max(shown, key=_write_key).uid
    replaced = [
        Candidate(pod, reason=f"its pod (uid {other}) was replaced by another of that name (uid {uid})")
        for other in sorted({s.uid for s in shown} - {uid})
    ]
    return max((s for s in shown if s.uid == uid), key=_preference_key), tuple(replaced)


def _write_key(shown: PodEndpoint) -> tuple[object, ...]:
    ready = status_of(shown.endpoint) is InstanceStatus.READY
    return shown.slice.write_order, ready, shown.uid


def _preference_key(shown: PodEndpoint) -> tuple[object, ...]:
    parsed = shown.slice
    return parsed.port is not None, -parsed.family_rank, parsed.write_order, parsed.slice.metadata.name
