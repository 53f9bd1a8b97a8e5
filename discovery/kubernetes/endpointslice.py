"""Parses one EndpointSlice: the pods that it names, and why its other endpoints are none. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from operator import is_not
from typing import Final, TypeAlias

from discovery.instance import COMPONENT_LABEL, NAMESPACE_LABEL, InstanceStatus
from discovery.kubernetes.wire import EndpointPort, EndpointSlice, SliceEndpoint, VersionKey, version_key
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
