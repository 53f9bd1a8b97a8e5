"""One slice read: the shapes that the API sends."""

from typing import Any

import pytest

from discovery import Candidate, Instance, InstanceStatus
from discovery.kubernetes.api.refusal import decode_status
from discovery.kubernetes.reflector.decoding import is_older, version_key
from discovery.kubernetes.slices.decoding import EndpointSlice, SliceDecoder
from discovery.kubernetes.slices.merge import AddressSelection, write_order
from tests.kubernetes.slice_builders import (
    DRAINING,
    NOT_READY,
    READY,
    a_slice,
    endpoint,
    instance,
    merged,
    only,
)


def test_an_instance_is_a_pod() -> None:
    ready = endpoint("dynamo-decode-0") | {
        "zone": "eu-1",
        "nodeName": "n7",
        "hints": {"forZones": [{"name": "eu-1"}]},
    }
    assert only(merged(a_slice(ready)).snapshot()) == Candidate(
        "dynamo-decode-0",
        Instance(
            "dynamo-decode-0",
            "dynamo",
            "decode",
            "10.1.2.3",
            8080,
            "uid-dynamo-decode-0",
            zone="eu-1",
            node="n7",
            ports={"http": 8080},
        ),
    )


@pytest.mark.parametrize(
    ("ready", "serving", "terminating", "status"),
    [
        (None, None, None, READY),
        (True, True, False, READY),
        (True, None, None, READY),
        (False, False, False, NOT_READY),
        (None, False, None, NOT_READY),
        (False, None, None, NOT_READY),
        (False, True, True, DRAINING),
        (True, True, True, DRAINING),
        (True, False, False, NOT_READY),
    ],
)
def test_conditions(
    ready: bool | None, serving: bool | None, terminating: bool | None, status: InstanceStatus
) -> None:
    """Unset is true, true, false; with publishNotReadyAddresses `ready` is true whatever the pod says."""
    shown = endpoint(ready=ready, serving=serving, terminating=terminating)
    assert instance(merged(a_slice(shown))).status is status


@pytest.mark.parametrize(
    "changes",
    [
        {"endpoints": None, "ports": None},
        {"endpoints": []},
        {"endpoints": None, "ports": None, "addressType": "FQDN"},
    ],
)
def test_a_placeholder_says_nothing(changes: dict[str, Any]) -> None:
    assert merged(a_slice(**changes)).snapshot().candidates == ()


@pytest.mark.parametrize(
    ("shown", "changes", "who", "reason"),
    [
        ({"addresses": ["10.1.2.3"]}, {}, "10.1.2.3", "does not say which pod it is"),
        ({"addresses": ["10.1.2.3"], "targetRef": None}, {}, "10.1.2.3", "no targetRef"),
        (
            endpoint() | {"targetRef": {"kind": "Node", "name": "n7", "uid": "x"}},
            {},
            "n7",
            "a Node, not a Pod",
        ),
        (endpoint() | {"targetRef": {"kind": "Pod", "name": "a"}}, {}, "a", "without a name or uid"),
        (endpoint() | {"addresses": []}, {}, "a", "no address"),
        (endpoint(), {"addressType": "FQDN"}, "s", "host names"),
        (endpoint(), {"ports": None}, "a", "no TCP port named 'http' (there is none at all)"),
        (endpoint(), {"ports": [{"name": "http", "port": None}]}, "a", "there is none at all"),
        (
            endpoint(),
            {"ports": [{"name": "grpc", "port": 1}, {"name": "", "port": 2}]},
            "a",
            "there is 'grpc', ''",
        ),
        (endpoint(), {"ports": [{"name": "http", "port": 1, "protocol": "UDP"}]}, "a", "no TCP port"),
        (
            endpoint(),
            {"metadata": {"labels": {"nvidia.com/dynamo-namespace": "dynamo-b"}}},
            "s",
            "its label nvidia.com/dynamo-namespace is 'dynamo-b', not 'dynamo'",
        ),
    ],
)
def test_what_is_no_instance_has_a_reason(
    shown: dict[str, Any], changes: dict[str, Any], who: str, reason: str
) -> None:
    candidate = only(merged(a_slice(shown, **changes)).snapshot())
    assert (candidate.id, candidate.instance) == (who, None)
    assert reason in (candidate.reason or "")


def test_the_seeds_labels_may_be_there() -> None:
    labels = {"nvidia.com/dynamo-namespace": "dynamo", "nvidia.com/dynamo-component": "decode"}
    assert instance(merged(a_slice(endpoint(), metadata={"labels": labels}))).status is READY


def test_a_port_without_protocol_is_tcp_and_an_unnamed_one_has_the_empty_name() -> None:
    found = merged(a_slice(endpoint(), ports=[{"port": 9}]), address_selection=AddressSelection(""))
    assert instance(found).port == 9


def test_where_versions_are_opaque_the_trigger_time_decides() -> None:
    def at(time: str, **shown: Any) -> EndpointSlice:
        stamps = {"endpoints.kubernetes.io/last-change-trigger-time": time}
        return a_slice(
            endpoint(**shown), name=time, metadata={"resourceVersion": f"v-{time}", "annotations": stamps}
        )

    early, late = at("2026-01-01T00:00:00Z", ready=True), at("2026-01-01T00:00:00.5Z", ready=False)
    assert instance(merged(late, early)).status is NOT_READY
    assert write_order(early) < write_order(late)


def test_a_list_of_another_kind_is_no_empty_list() -> None:
    with pytest.raises(ValueError, match="kind"):
        SliceDecoder().page(b'{"metadata": {"resourceVersion": "1"}}')
    with pytest.raises(ValueError, match="kind"):
        SliceDecoder().page(b'{"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": []}')
    empty = b'{"kind": "EndpointSliceList", "metadata": {"resourceVersion": "1"}, "items": null}'
    assert SliceDecoder().page(empty).objects == ()


def test_a_status_that_is_none() -> None:
    assert decode_status(b"<html>").code == 0


def test_versions_are_numbers() -> None:
    assert is_older("99", than="100")
    assert not is_older("100", than="100")
    assert not is_older("x", than="100")
    assert not is_older("100", than="")
    assert version_key("340282366920938463463374607431768211455") > version_key("9")
