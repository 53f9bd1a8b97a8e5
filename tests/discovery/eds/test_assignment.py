"""Candidates as hosts of an Envoy cluster."""

import json
from typing import Any

import pytest

from discovery import Instance, InstanceStatus
from discovery.eds.assignment import HealthStatus, LbEndpoint, assign, file_bytes, version


def worker(name: str, port: int = 8000, **changes: Any) -> Instance:
    return Instance(
        name, "prod", "decode", **{"address": "10.0.0.1", "port": port, "incarnation": "1"} | changes
    )


def hosts(*known: Instance, published: tuple[Instance, ...] = (), name: str | None = None) -> list[Any]:
    found = assign({i.id: i for i in known}, {i.id: i for i in published}, name)
    return [(e.address, e.port, e.health) for e in found.endpoints]


@pytest.mark.parametrize(
    ("candidate", "published", "health"),
    [
        ({}, {"serving_port": None}, HealthStatus.HEALTHY),
        ({}, {"reachable": False}, HealthStatus.UNHEALTHY),
        ({}, None, HealthStatus.UNHEALTHY),
        ({"status": InstanceStatus.NOT_READY}, None, HealthStatus.UNHEALTHY),
        ({"status": InstanceStatus.DRAINING}, None, HealthStatus.DRAINING),
        ({}, {"incarnation": "another life"}, HealthStatus.UNHEALTHY),
    ],
)
def test_who_gets_requests_that_no_pick_decides(
    candidate: dict[str, Any], published: dict[str, Any] | None, health: HealthStatus
) -> None:
    members = () if published is None else (worker("w", **published),)
    assert hosts(worker("w", **candidate), published=members) == [("10.0.0.1", 8000, health)]


@pytest.mark.parametrize(
    ("document", "name", "port"), [(None, None, 8000), (None, "http", 8001), (9000, "http", 9000)]
)
def test_the_port_is_the_one_that_the_picker_names(document: int | None, name: str | None, port: int) -> None:
    registered = worker("w", ports={"http": 8001})
    member = worker("w", ports={"http": 8001}, serving_port=document)
    assert hosts(registered, published=(member,), name=name) == [("10.0.0.1", port, HealthStatus.HEALTHY)]


def test_an_address_stands_once_with_its_best_health() -> None:
    leaving, ready = worker("a", status=InstanceStatus.DRAINING), worker("b")
    assert hosts(leaving, ready, published=(ready,)) == [("10.0.0.1", 8000, HealthStatus.HEALTHY)]
    assert hosts(ready, leaving, published=(ready,)) == [("10.0.0.1", 8000, HealthStatus.HEALTHY)]


def test_a_host_name_is_left_out_and_told() -> None:
    found = assign({"w": worker("w", address="w.example"), "v": worker("v", address="fd00::1")}, {})
    assert [e.address for e in found.endpoints] == ["fd00::1"]
    assert found.without_ip == ("w",)


def test_the_file_is_what_envoy_calls_a_discovery_response() -> None:
    endpoints = (
        LbEndpoint("", "10.0.0.1", 8000),
        LbEndpoint("", "10.0.0.2", 8000, HealthStatus.UNHEALTHY),
        LbEndpoint("east", "fd00::1", 8000),
    )
    text = json.loads(file_bytes("workers", endpoints))
    assert text["version_info"] == version("workers", endpoints) != version("workers", endpoints[1:])
    [resource] = text["resources"]
    assert resource["@type"] == "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
    assert resource["cluster_name"] == "workers"
    nowhere, east = resource["endpoints"]
    assert east["locality"] == {"zone": "east"}
    assert [e.get("health_status") for e in nowhere["lb_endpoints"]] == [None, "UNHEALTHY"]
    address = {"socket_address": {"address": "fd00::1", "port_value": 8000}}
    assert east["lb_endpoints"] == [{"endpoint": {"address": address}}]
