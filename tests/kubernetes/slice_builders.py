"""Builds slices as the API sends them, and merged sets of them."""

from typing import Any

import msgspec

from discovery import Candidate, Instance, InstanceStatus, Snapshot
from discovery.kubernetes.slices.decoding import EndpointSlice
from discovery.kubernetes.slices.merge import AddressSelection, MergedSet
from discovery.source import component_key

KEY = component_key("dynamo", "decode")


READY, NOT_READY, DRAINING = InstanceStatus.READY, InstanceStatus.NOT_READY, InstanceStatus.DRAINING


HTTP = [{"name": "http", "port": 8080, "protocol": "TCP"}]


def endpoint(
    pod: str = "a", uid: str | None = None, ip: str = "10.1.2.3", **conditions: bool | None
) -> dict[str, Any]:
    target = {"kind": "Pod", "namespace": "default", "name": pod, "uid": uid or f"uid-{pod}"}
    return {"addresses": [ip], "conditions": conditions, "targetRef": target}


def a_slice(
    *endpoints: dict[str, Any], name: str = "s", version: int = 1, family: str = "IPv4", **changes: Any
) -> EndpointSlice:
    document = {
        "metadata": {"name": name, "resourceVersion": str(version), **changes.pop("metadata", {})},
        "addressType": family,
        "endpoints": list(endpoints),
        "ports": HTTP,
    }
    return msgspec.convert(document | changes, EndpointSlice)


def merged(
    *slices: EndpointSlice, grace: float = 0.5, address_selection: AddressSelection | None = None
) -> MergedSet:
    found = MergedSet(KEY, address_selection or AddressSelection(), grace)
    fill(found, slices)
    return found


def fill(found: MergedSet, slices: Any, now: float = 0.0) -> bool:
    return any([*found.replace(slices, now)])


def only(snapshot: Snapshot) -> Candidate:
    [candidate] = snapshot.candidates
    return candidate


def instance(found: MergedSet, pod: str = "a") -> Instance:
    return found.snapshot().known[pod]
