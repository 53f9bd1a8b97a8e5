"""One slice read, in the shapes that the API sends; several slices are one set: grace, duplicates, dual stack, and pods reborn."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discovery import Candidate, Instance, InstanceStatus
from discovery.kubernetes.api.refusal import decode_status
from discovery.kubernetes.reflector.decoding import is_older, version_key
from discovery.kubernetes.slices.decoding import EndpointSlice, SliceDecoder
from discovery.kubernetes.slices.merge import AddressSelection, MergedSet, parse_slice, write_order
from tests.kubernetes.slice_builders import (
    DRAINING,
    HTTP,
    KEY,
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


def test_dual_stack_is_one_instance_at_the_preferred_address() -> None:
    four, six = (
        a_slice(endpoint(), name="four"),
        a_slice(endpoint(ip="fd00::1"), name="six", family="IPv6", version=9),
    )
    assert instance(merged(four, six)).address == "10.1.2.3"
    assert (
        instance(merged(four, six, address_selection=AddressSelection(families=("IPv6", "IPv4")))).address
        == "fd00::1"
    )
    assert instance(merged(six)).authority == "[fd00::1]:8080"
    assert (
        only(merged(six, address_selection=AddressSelection(families=("IPv4",))).snapshot()).reason
        is not None
    )


def test_a_rewrite_of_one_slice_counts_for_pods_that_stand_in_two() -> None:
    """Even if none of its endpoints changed: the slice written last counts."""
    old = a_slice(endpoint(ready=True), name="old", version=5)
    new = a_slice(endpoint(ready=False), name="new", version=6)
    found = merged(old, new)
    assert instance(found).status is NOT_READY
    metadata = msgspec.structs.replace(old.metadata, resource_version="7")
    assert found.put(msgspec.structs.replace(old, metadata=metadata), 1.0)
    assert instance(found).status is READY


def test_a_pod_that_stands_twice_in_one_slice_is_as_its_last_endpoint_says() -> None:
    first, last = endpoint(ip="10.0.0.1"), endpoint(ip="10.0.0.2")
    before, after = a_slice(first, last), a_slice(first | {"zone": "z"}, last, version=2)
    assert before.endpoints is not None
    assert after.endpoints is not None
    found = merged(before)
    kept = msgspec.structs.replace(after, endpoints=(after.endpoints[0], before.endpoints[1]))
    assert not found.put(kept, 1.0)
    assert instance(found).address == "10.0.0.2"


def test_very_many_missing_pods_expire_in_steps() -> None:
    names = [f"w-{number}" for number in range(2500)]
    found = merged(a_slice(*(endpoint(name) for name in names)))
    assert not found.remove("s", 1.0)
    left = []
    while found.expires_at is not None:
        assert found.expire(1.5)
        left.append(len(found.snapshot().instances))
    assert left == [1500, 500, 0]
    assert found.snapshot().candidates == ()


def test_what_did_not_change_is_the_same_instance() -> None:
    found = merged(a_slice(endpoint("a"), endpoint("b")))
    before = found.snapshot()
    assert found.put(a_slice(endpoint("a"), endpoint("b", ready=False), version=2), 1.0)
    after = found.snapshot()
    assert after.known["a"] is before.known["a"]
    assert set(before.instances) == {"a", "b"}, "a snapshot stays what it was"
    assert found.snapshot().known is after.known


pods = st.sampled_from(["a", "b", "c"])

shown = st.builds(
    lambda pod, uid, ip, ready, terminating: endpoint(
        pod, f"{pod}-{uid}", ip, ready=ready, terminating=terminating
    ),
    pods,
    st.sampled_from("12"),
    st.sampled_from(["10.0.0.1", "10.0.0.2"]),
    st.sampled_from([None, True, False]),
    st.booleans(),
)

contents = st.lists(shown, max_size=3, unique_by=lambda e: e["targetRef"]["name"])

changes = st.lists(st.tuples(st.sampled_from("xyz"), st.none() | contents, st.booleans()), max_size=12)


def history(
    steps: list[tuple[str, list[dict[str, Any]] | None, bool]], found: MergedSet
) -> dict[str, EndpointSlice]:
    """Apply every step as the server would write it; the slices as they are at the end."""
    state: dict[str, EndpointSlice] = {}
    for version, (name, endpoints, http) in enumerate(steps, 1):
        if endpoints is None:
            state.pop(name, None)
            found.remove(name, 0.0)
        else:
            family = "IPv6" if name == "z" else "IPv4"
            ports = HTTP if http else []
            state[name] = a_slice(*endpoints, name=name, version=version, family=family, ports=ports)
            found.put(state[name], 0.0)
    return state


@settings(deadline=None)
@given(changes)
def test_step_by_step_is_the_same_as_all_at_once(
    steps: list[tuple[str, list[dict[str, Any]] | None, bool]],
) -> None:
    stepwise = MergedSet(KEY, AddressSelection(), grace=0)
    state = history(steps, stepwise)
    at_once = merged(*state.values(), grace=0)
    backwards = merged(*reversed(state.values()), grace=0)
    assert set(stepwise.snapshot().candidates) == set(at_once.snapshot().candidates)
    assert set(at_once.snapshot().candidates) == set(backwards.snapshot().candidates)
    assert stepwise.snapshot().instances == at_once.snapshot().instances


@settings(deadline=None)
@given(changes)
def test_grace_only_delays(steps: list[tuple[str, list[dict[str, Any]] | None, bool]]) -> None:
    patient, hasty = (
        MergedSet(KEY, AddressSelection(), grace=0.5),
        MergedSet(KEY, AddressSelection(), grace=0),
    )
    history(steps, patient)
    history(steps, hasty)
    extra = patient.snapshot().instances.keys() - hasty.snapshot().instances.keys()
    assert hasty.snapshot().instances.items() <= patient.snapshot().instances.items()
    assert bool(extra) == (patient.expires_at is not None)
    patient.expire(0.5)
    assert set(patient.snapshot().candidates) == set(hasty.snapshot().candidates)


@settings(deadline=None)
@given(changes)
def test_a_pod_is_ready_once_and_only_if_a_slice_says_so(
    steps: list[tuple[str, list[dict[str, Any]] | None, bool]],
) -> None:
    found = MergedSet(KEY, AddressSelection(), grace=0)
    state = history(steps, found)
    said = {
        (e.target_ref.name, e.target_ref.uid)
        for s in state.values()
        for e in parse_slice(s, KEY, AddressSelection()).pods.values()
        if e.target_ref is not None and e.conditions is not None and e.conditions.ready is not False
    }
    ready = [c.instance for c in found.snapshot().candidates if c.instance and c.instance.status is READY]
    assert {(i.id, i.incarnation) for i in ready} <= said
    assert len({i.id for i in ready}) == len(ready)
