"""One EndpointSlice read: which pods it names, and what to say of endpoints that are no pods. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from operator import is_not
from typing import Final, TypeAlias

from discovery.instance import COMPONENT_LABEL, NAMESPACE_LABEL, InstanceStatus
from discovery.kubernetes.wire import Age, EndpointSlice, Port, SliceEndpoint, age
from discovery.source import Candidate, ComponentKey

Stamp: TypeAlias = tuple[Age, tuple[str, str]]
"""When a slice was written, as the server orders writes."""

_NAMES: Final = "FQDN"


@dataclass(frozen=True, slots=True)
class SliceReading:
    """What to look for: the port's name, and the address families, the preferred one first."""

    port_name: str = "http"
    families: Sequence[str] = ("IPv4", "IPv6")


@dataclass(frozen=True, slots=True, eq=False)
class SliceContent:
    """What one slice says. `pods`: its endpoints by pod name. `port`: None when it has none of the wanted name, then
    `problem` says so. `ports`: its TCP ports that have a name. `rank`: place of its address family in the order of preference, 0 the first.
    """

    slice: EndpointSlice
    stamp: Stamp
    rank: int
    port: int | None
    ports: Mapping[str, int]
    problem: str | None
    pods: Mapping[str, SliceEndpoint]
    strangers: tuple[Candidate, ...]


def read_slice(
    found: EndpointSlice, key: ComponentKey, reading: SliceReading, before: SliceContent | None = None
) -> SliceContent:
    """The slice as it matters to `key`. Endpoints that name no pod become candidates with the reason.

    `before`: what it said when it was last read, by the same rules.
    """
    if before is not None and (amended := _amended(before, found)) is not None:
        return amended
    name, family = found.metadata.name, found.address_type
    port = _port(found.ports or (), reading.port_name)
    problem = None if port is not None else _no_port(name, found.ports or (), reading.port_name)
    reason = _foreign(found, key) or _unusable_family(family, reading.families)
    stamp = written(found)
    if reason is not None:
        whole = (Candidate(name, reason=reason),) if found.endpoints else ()
        return SliceContent(found, stamp, 0, port, {}, problem, {}, whole)
    pods, strangers = _pods(found)
    ports = _by_name(found.ports or ())
    return SliceContent(found, stamp, reading.families.index(family), port, ports, problem, pods, strangers)


def written(found: EndpointSlice) -> Stamp:
    """Resource versions order the writes; where they are opaque, the controller's trigger time does. That time alone
    would not do: it is taken from the clocks of nodes and is absent from writes without a pod's change.
    """
    annotations = found.metadata.annotations
    seconds, _, fraction = ((annotations and annotations.last_change) or "").rstrip("Z").partition(".")
    return age(found.metadata.resource_version), (seconds, fraction)


def status_of(endpoint: SliceEndpoint) -> InstanceStatus:
    """An unset condition counts as ready, serving and not terminating (discovery.k8s.io/v1 EndpointConditions)."""
    conditions = endpoint.conditions
    if conditions is None:
        return InstanceStatus.READY
    if conditions.terminating:
        return InstanceStatus.DRAINING
    if conditions.ready is False or conditions.serving is False:
        return InstanceStatus.NOT_READY
    return InstanceStatus.READY


def _amended(before: SliceContent, found: EndpointSlice) -> SliceContent | None:
    """What the slice says when nothing in it changed but endpoints in their places: nearly always, and a few of a
    hundred. None: it must be read anew.
    """
    old, endpoints = before.slice, found.endpoints
    places = 0 if endpoints is None else len(endpoints)
    if not endpoints or old.endpoints is None or not places == len(old.endpoints) == len(before.pods):
        return None
    if (old.address_type, old.ports, old.metadata.name, old.metadata.labels) != (
        found.address_type,
        found.ports,
        found.metadata.name,
        found.metadata.labels,
    ):
        return None
    pods = dict(before.pods)
    for was, is_ in compress(
        zip(old.endpoints, endpoints, strict=True), map(is_not, old.endpoints, endpoints)
    ):
        name = _pod_name(is_)
        if name is None or name != _pod_name(was):
            return None
        pods[name] = is_
    return replace(before, slice=found, stamp=written(found), pods=pods)


def _pods(found: EndpointSlice) -> tuple[dict[str, SliceEndpoint], tuple[Candidate, ...]]:
    pods: dict[str, SliceEndpoint] = {}
    strangers: list[Candidate] = []
    for endpoint in found.endpoints or ():
        name = _pod_name(endpoint)
        if name is not None:
            pods[name] = endpoint
        else:
            strangers.append(_stranger(endpoint, found.metadata.name))
    return pods, tuple(strangers)


def _pod_name(endpoint: SliceEndpoint) -> str | None:
    """The pod that this endpoint is, None when it is no pod that can be told from others and reached."""
    target = endpoint.target_ref
    if target is not None and target.kind == "Pod" and target.uid and endpoint.addresses:
        return target.name or None
    return None


def _stranger(endpoint: SliceEndpoint, slice_name: str) -> Candidate:
    target = endpoint.target_ref
    if not endpoint.addresses:
        who = target.name if target is not None and target.name else slice_name
        return Candidate(who, reason=f"the slice {slice_name} gives it no address")
    where = endpoint.addresses[0]
    if target is None:
        return Candidate(where, reason=f"the slice {slice_name} does not say which pod it is (no targetRef)")
    if target.kind != "Pod":
        return Candidate(target.name or where, reason=f"it is a {target.kind or 'nameless thing'}, not a Pod")
    return Candidate(
        target.name or where, reason=f"the slice {slice_name} names its pod without a name or uid"
    )


def _foreign(found: EndpointSlice, key: ComponentKey) -> str | None:
    """Labels are copied from the Service, which need not carry them; where it does, they must be ours."""
    labels = found.metadata.labels
    if labels is None:
        return None
    for label, is_, wanted in (
        (NAMESPACE_LABEL, labels.namespace, key.namespace),
        (COMPONENT_LABEL, labels.component, key.component),
    ):
        if is_ is not None and is_ != wanted:
            return f"its label {label} is {is_!r}, not {wanted!r}"
    return None


def _unusable_family(family: str, wanted: Sequence[str]) -> str | None:
    if family in wanted:
        return None
    if family == _NAMES:
        return "it lists host names (addressType FQDN), which mean nothing to Kubernetes any more"
    return f"its address family is {family}; asked for {' and '.join(wanted)}"


def _port(ports: Iterable[Port], name: str) -> int | None:
    for port in ports:
        if (port.name or "") == name and port.port is not None and (port.protocol or "TCP") == "TCP":
            return port.port
    return None


def _by_name(ports: Iterable[Port]) -> Mapping[str, int]:
    tcp = [port for port in ports if (port.protocol or "TCP") == "TCP"]
    return {port.name: port.port for port in tcp if port.name and port.port is not None}


def _no_port(slice_name: str, ports: Iterable[Port], wanted: str) -> str:
    names = ", ".join(repr(port.name or "") for port in ports if port.port is not None) or "none at all"
    return f"its slice {slice_name} has no TCP port named {wanted!r} (there is {names})"
