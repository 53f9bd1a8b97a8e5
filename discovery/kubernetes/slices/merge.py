"""Merges the slices of one component into one set of candidates, each pod once. Pure: time is passed in.

A pod may be in several slices at once, or in none for some milliseconds: the EndpointSlice controller moves endpoints
by several writes, and each slice arrives as an event of its own ("Duplicate endpoints" in Kubernetes' page on
EndpointSlices). So no event of a single slice says that a pod came or went: only all slices together do.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress
from operator import is_not
from typing import Final, TypeAlias

from discovery.instance import COMPONENT_LABEL, NAMESPACE_LABEL, Instance, InstanceStatus, MetadataReader
from discovery.kubernetes.reflector.decoding import VersionKey, version_key
from discovery.kubernetes.reflector.publisher import InstanceSet
from discovery.kubernetes.slices.decoding import EndpointPort, EndpointSlice, SliceEndpoint
from discovery.source import Candidate, ComponentKey

WriteOrder: TypeAlias = tuple[VersionKey, tuple[str, str]]
"""Sorts slices by the time of their last write."""

_FQDN: Final = "FQDN"


@dataclass(frozen=True, slots=True)
class AddressSelection:
    """The name of the port that counts, and the address families that may be used, the preferred one first."""

    port_name: str = "http"
    families: Sequence[str] = ("IPv4", "IPv6")


@dataclass(frozen=True, slots=True, eq=False)
class ParsedSlice:
    """`family_rank`: index of the address family in `AddressSelection.families`. `port`: None if the slice has no TCP
    port of the wanted name; then `problem` says so. `ports`: its named TCP ports. `pods`: its endpoints by pod name.
    `excluded`: its endpoints that name no pod.
    """

    slice: EndpointSlice
    write_order: WriteOrder
    family_rank: int
    port: int | None
    ports: Mapping[str, int]
    problem: str | None
    pods: Mapping[str, SliceEndpoint]
    excluded: tuple[Candidate, ...]


def parse_slice(
    found: EndpointSlice,
    key: ComponentKey,
    address_selection: AddressSelection,
    before: ParsedSlice | None = None,
) -> ParsedSlice:
    """A slice of another component or an unusable address family is excluded as a whole.

    `before`: the slice as it was last parsed, for the same key and selection.
    """
    if before is not None and (updated := _updated_in_place(before, found)) is not None:
        return updated
    name, family = found.metadata.name, found.address_type
    port = _port(found.ports or (), address_selection.port_name)
    problem = (
        None if port is not None else _missing_port(name, found.ports or (), address_selection.port_name)
    )
    reason = _label_mismatch(found, key) or _unusable_family(family, address_selection.families)
    order = write_order(found)
    if reason is not None:
        whole = (Candidate(name, reason=reason),) if found.endpoints else ()
        return ParsedSlice(found, order, 0, port, {}, problem, {}, whole)
    pods, excluded = _pods(found)
    rank = address_selection.families.index(family)
    return ParsedSlice(found, order, rank, port, _named_ports(found.ports or ()), problem, pods, excluded)


def write_order(found: EndpointSlice) -> WriteOrder:
    """By resourceVersion; if versions are opaque, by the controller's trigger time. That time alone would not do: it
    comes from the clocks of several nodes, and writes that no pod caused have none.
    """
    annotations = found.metadata.annotations
    seconds, _, fraction = ((annotations and annotations.last_change) or "").rstrip("Z").partition(".")
    return version_key(found.metadata.resource_version), (seconds, fraction)


def status_of(endpoint: SliceEndpoint) -> InstanceStatus:
    """An unset condition counts as ready, serving and not terminating (discovery.k8s.io/v1, EndpointConditions)."""
    conditions = endpoint.conditions
    if conditions is None:
        return InstanceStatus.READY
    if conditions.terminating:
        return InstanceStatus.DRAINING
    # With publishNotReadyAddresses `ready` is always true: only `serving` then says what the probe says
    if conditions.ready is False or conditions.serving is False:
        return InstanceStatus.NOT_READY
    return InstanceStatus.READY


def _updated_in_place(before: ParsedSlice, found: EndpointSlice) -> ParsedSlice | None:
    """The usual event: some endpoints changed, none was added, removed or moved. Costs the changed endpoints instead of
    all. None: the slice must be parsed.
    """
    old, endpoints = before.slice, found.endpoints
    count = 0 if endpoints is None else len(endpoints)
    if not endpoints or old.endpoints is None or not count == len(old.endpoints) == len(before.pods):
        return None
    if (old.address_type, old.ports, old.metadata.name, old.metadata.labels) != (
        found.address_type,
        found.ports,
        found.metadata.name,
        found.metadata.labels,
    ):
        return None
    pods = dict(before.pods)
    # SliceDecoder keeps unchanged endpoints as the same objects: comparing identities is enough
    for was, is_ in compress(
        zip(old.endpoints, endpoints, strict=True), map(is_not, old.endpoints, endpoints)
    ):
        name = _pod_name(is_)
        if name is None or name != _pod_name(was):
            return None
        pods[name] = is_
    return replace(before, slice=found, write_order=write_order(found), pods=pods)


def _pods(found: EndpointSlice) -> tuple[dict[str, SliceEndpoint], tuple[Candidate, ...]]:
    pods: dict[str, SliceEndpoint] = {}
    excluded: list[Candidate] = []
    for endpoint in found.endpoints or ():
        name = _pod_name(endpoint)
        if name is not None:
            pods[name] = endpoint
        else:
            excluded.append(_excluded(endpoint, found.metadata.name))
    return pods, tuple(excluded)


def _pod_name(endpoint: SliceEndpoint) -> str | None:
    """None for an endpoint that is no pod, or a pod without an address or a UID."""
    target = endpoint.target_ref
    if target is not None and target.kind == "Pod" and target.uid and endpoint.addresses:
        return target.name or None
    return None


def _excluded(endpoint: SliceEndpoint, slice_name: str) -> Candidate:
    target = endpoint.target_ref
    if not endpoint.addresses:
        name = target.name if target is not None and target.name else slice_name
        return Candidate(name, reason=f"the slice {slice_name} gives it no address")
    address = endpoint.addresses[0]
    if target is None:
        return Candidate(
            address, reason=f"the slice {slice_name} does not say which pod it is (no targetRef)"
        )
    if target.kind != "Pod":
        return Candidate(
            target.name or address, reason=f"it is a {target.kind or 'nameless thing'}, not a Pod"
        )
    return Candidate(
        target.name or address, reason=f"the slice {slice_name} names its pod without a name or uid"
    )


def _label_mismatch(found: EndpointSlice, key: ComponentKey) -> str | None:
    """The controller copies a Service's labels to its slices. The Service need not have ours, but must not have others."""
    labels = found.metadata.labels
    if labels is None:
        return None
    for label, value, wanted in (
        (NAMESPACE_LABEL, labels.namespace, key.namespace),
        (COMPONENT_LABEL, labels.component, key.component),
    ):
        if value is not None and value != wanted:
            return f"its label {label} is {value!r}, not {wanted!r}"
    return None


def _unusable_family(family: str, wanted: Sequence[str]) -> str | None:
    if family in wanted:
        return None
    if family == _FQDN:  # deprecated in discovery.k8s.io/v1: no semantics are defined for it
        return "it lists host names (addressType FQDN), which Kubernetes gives no meaning"
    return f"its address family is {family}; asked for {' and '.join(wanted)}"


def _port(ports: Iterable[EndpointPort], name: str) -> int | None:
    for port in ports:
        if (port.name or "") == name and port.port is not None and (port.protocol or "TCP") == "TCP":
            return port.port
    return None


def _named_ports(ports: Iterable[EndpointPort]) -> Mapping[str, int]:
    tcp = [port for port in ports if (port.protocol or "TCP") == "TCP"]
    return {port.name: port.port for port in tcp if port.name and port.port is not None}


def _missing_port(slice_name: str, ports: Iterable[EndpointPort], wanted: str) -> str:
    names = ", ".join(repr(port.name or "") for port in ports if port.port is not None) or "none at all"
    return f"its slice {slice_name} has no TCP port named {wanted!r} (there is {names})"


@dataclass(frozen=True, slots=True, eq=False)
class PodEndpoint:
    """A pod as one slice shows it."""

    slice: ParsedSlice
    endpoint: SliceEndpoint

    @property
    def uid(self) -> str:
        return self.endpoint.target_ref.uid if self.endpoint.target_ref is not None else ""


class MergedSet(InstanceSet[EndpointSlice]):
    """`grace`: seconds that a ready pod may be missing from all slices. `reader`: for each Instance."""

    def __init__(
        self,
        key: ComponentKey,
        address_selection: AddressSelection,
        grace: float,
        reader: MetadataReader | None = None,
    ) -> None:
        super().__init__(grace)
        self._key = key
        self._address_selection = address_selection
        self._reader = reader
        self._slices: dict[str, ParsedSlice] = {}
        self._slices_of: dict[str, set[str]] = {}
        self._in_several: set[str] = set()

    def names(self) -> Iterable[str]:
        return self._slices

    def unnamed(self) -> Iterable[Candidate]:
        return chain.from_iterable(parsed.excluded for parsed in self._slices.values() if parsed.excluded)

    def put(self, found: EndpointSlice, now: float) -> bool:
        name = found.metadata.name
        before = self._slices.get(name)
        if before is not None and before.slice == found:
            return False
        after = self._slices[name] = parse_slice(found, self._key, self._address_selection, before)
        return self._slice_changed(before, after, name, now)

    def remove(self, name: str, now: float) -> bool:
        before = self._slices.pop(name, None)
        return before is not None and self._slice_changed(before, None, name, now)

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
            return self.miss(pod, now)
        shown = [PodEndpoint(self._slices[name], self._slices[name].pods[pod]) for name in names]
        best, replaced = (shown[0], ()) if len(shown) == 1 else _choose(pod, shown)
        instance = self._instance(pod, best)
        if instance is None:
            return self.show(pod, None, (Candidate(pod, reason=best.slice.problem), *replaced))
        return self.show(pod, instance, replaced)

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
    StatefulSet gives a new pod the old name). Slices with that UID are ordered: first the wanted port, then the
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
