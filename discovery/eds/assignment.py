"""The endpoints of an Envoy cluster from the candidates of a component, and the EDS resource that names them (pure).

https://www.envoyproxy.io/docs/envoy/latest/api-v3/config/endpoint/v3/endpoint.proto
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Any, Final

import msgspec

from adsum.addresses import is_ip
from discovery.instance import Instance, InstanceStatus

TYPE_URL: Final = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"


class HealthStatus(StrEnum):
    """How Envoy's load balancers treat a host. `override_host` sends to any of them, if the picker names it."""

    HEALTHY = "HEALTHY"
    DRAINING = "DRAINING"
    UNHEALTHY = "UNHEALTHY"


@dataclass(frozen=True, slots=True, order=True)
class LbEndpoint:
    """One host of the cluster."""

    zone: str
    address: str
    port: int
    health: HealthStatus = HealthStatus.HEALTHY


@dataclass(frozen=True, slots=True)
class Assignment:
    """`endpoints`: sorted, each address once. `without_ip`: ids of candidates with a host name, which EDS cannot hold."""

    endpoints: tuple[LbEndpoint, ...] = ()
    without_ip: tuple[str, ...] = ()

    @property
    def healthy(self) -> int:
        return sum(endpoint.health is HealthStatus.HEALTHY for endpoint in self.endpoints)


def assign(
    known: Mapping[str, Instance], published: Mapping[str, Instance], serving_port_name: str | None = None
) -> Assignment:
    """`known`: every candidate; `published`: the instances whose documents have arrived.

    A candidate that is not ready is listed too: Envoy should know a worker before a pick names it.
    """
    found: dict[tuple[str, int], LbEndpoint] = {}
    without_ip: list[str] = []
    for candidate in known.values():
        if not is_ip(candidate.address):
            without_ip.append(candidate.id)
            continue
        member = published.get(candidate.id)
        if member is not None and member.incarnation != candidate.incarnation:
            member = None
        port = _port(member or candidate, serving_port_name)
        one = LbEndpoint(candidate.zone or "", candidate.address, port, _health(candidate, member))
        place = one.address, one.port
        found[place] = min(one, found.get(place, one), key=_rank)
    return Assignment(tuple(sorted(found.values())), tuple(sorted(without_ip)))


def _port(instance: Instance, name: str | None) -> int:
    """As in the picker: what the document says, else the port of that name, else the registered one."""
    return instance.serving_port or instance.ports.get(name or "") or instance.port


def _health(candidate: Instance, member: Instance | None) -> HealthStatus:
    if candidate.status is InstanceStatus.DRAINING:
        return HealthStatus.DRAINING
    is_up = candidate.status is InstanceStatus.READY and member is not None and member.reachable
    return HealthStatus.HEALTHY if is_up else HealthStatus.UNHEALTHY


_ORDER: Final = tuple(HealthStatus)


def _rank(endpoint: LbEndpoint) -> tuple[int, str]:
    return _ORDER.index(endpoint.health), endpoint.zone


def resource(cluster: str, endpoints: Iterable[LbEndpoint]) -> dict[str, Any]:
    """The ClusterLoadAssignment in protobuf's JSON form; one locality for each zone."""
    localities = []
    for zone, members in groupby(endpoints, key=lambda endpoint: endpoint.zone):
        named = {"locality": {"zone": zone}} if zone else {}
        localities.append({**named, "lb_endpoints": [_lb_endpoint(member) for member in members]})
    return {"cluster_name": cluster, "endpoints": localities}


def _lb_endpoint(endpoint: LbEndpoint) -> dict[str, Any]:
    socket_address = {"address": endpoint.address, "port_value": endpoint.port}
    health = {} if endpoint.health is HealthStatus.HEALTHY else {"health_status": endpoint.health.value}
    return {"endpoint": {"address": {"socket_address": socket_address}}, **health}


def version(cluster: str, endpoints: Iterable[LbEndpoint]) -> str:
    """The same for the same endpoints, also after a restart and in another replica."""
    return hashlib.sha256(msgspec.json.encode(resource(cluster, endpoints))).hexdigest()[:16]


def file_bytes(cluster: str, endpoints: Iterable[LbEndpoint]) -> bytes:
    """The file that Envoy reads as `path_config_source`: a DiscoveryResponse in JSON."""
    endpoints = tuple(endpoints)
    one = {"@type": TYPE_URL, **resource(cluster, endpoints)}
    response = {"version_info": version(cluster, endpoints), "resources": [one]}
    return msgspec.json.format(msgspec.json.encode(response), indent=1) + b"\n"
