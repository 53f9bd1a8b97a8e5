"""One instance for each target port of each Pod: names, ranks, ports, status, incarnation, grace."""

import json
from typing import Any

import pytest

from discovery import Instance, InstanceStatus
from discovery.kubernetes.api.objects import Pod
from discovery.kubernetes.pods.pod_set import PodSet
from discovery.kubernetes.reflector.decoding import ResourceDecoder
from discovery.source import component_key
from tests.kubernetes.fake import objects

KEY = component_key("dynamo", "decode")


def decoded(name: str = "a", *, uid: str = "u1", change: Any = None, **how: Any) -> Pod:
    """A Pod as a watch tells it; `change` is applied to its JSON."""
    document = objects.pod(name, how.pop("ip", "10.1.2.3"), uid=uid, **how)
    if change is not None:
        change(document)
    found = ResourceDecoder[Pod](Pod).event(json.dumps({"type": "ADDED", "object": document}).encode())
    assert isinstance(found.object, Pod)  # type: ignore[union-attr]
    return found.object  # type: ignore[union-attr]


def shown(*pods: Pod, ports: tuple[int, ...] = (8000,), grace: float = 0.5, **options: Any) -> PodSet:
    found = PodSet(KEY, grace, **options)
    found.ports = ports
    for _ in found.replace(pods, 0.0):
        pass
    return found


def ready(found: PodSet) -> dict[str, Instance]:
    return dict(found.snapshot().instances)


def reasons(found: PodSet) -> dict[str, str | None]:
    candidates = [*found.snapshot().others, *found.reasons()]
    return {candidate.id: candidate.reason for candidate in candidates}


def test_one_instance_for_each_port_named_by_rank() -> None:
    found = ready(shown(decoded(labels={"app": "vllm"}, node="n1"), ports=(8000, 8001, 8002)))
    assert {i.id: (i.port, i.rank) for i in found.values()} == {
        "a-rank-0": (8000, 0),
        "a-rank-1": (8001, 1),
        "a-rank-2": (8002, 2),
    }
    one = found["a-rank-1"]
    assert (one.address, one.labels, one.node, one.zone) == ("10.1.2.3", {"app": "vllm"}, "n1", None)
    assert (one.namespace, one.component) == ("dynamo", "decode")


def test_a_single_port_has_a_rank_too() -> None:
    assert ready(shown(decoded())).keys() == {"a-rank-0"}


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("8001", {1}),
        (" 8002 , 8000 ", {0, 2}),
        ("8000,9999,-1,x,\uff18\uff10\uff10\uff11,99999999999999999999", {0}),
        ("", set()),
        ("9999", set()),
    ],
)
@pytest.mark.parametrize("name", ["llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports"])
def test_an_annotation_narrows_the_ports_and_leaves_the_ranks(text: str, ranks: set[int], name: str) -> None:
    found = shown(decoded(annotations={name: text}), ports=(8000, 8001, 8002))
    assert {i.rank for i in ready(found).values()} == ranks
    assert len(reasons(found)) == 3 - len(ranks)
    assert all("llm-d.ai/active-ports names" in (reason or "") for reason in reasons(found).values())


def test_the_newer_annotation_wins() -> None:
    both = {"llm-d.ai/active-ports": "8001", "inference.networking.k8s.io/active-ports": "8000"}
    assert ready(shown(decoded(annotations=both), ports=(8000, 8001))).keys() == {"a-rank-1"}


@pytest.mark.parametrize(
    ("how", "status", "reason"),
    [
        ({"ready": False}, InstanceStatus.NOT_READY, "its pod's condition Ready is False"),
        ({"terminating": True}, InstanceStatus.DRAINING, "its pod is terminating"),
        ({"ready": False, "phase": "Failed"}, InstanceStatus.NOT_READY, "its pod is Failed"),
    ],
)
def test_who_is_not_ready_or_terminates_is_known_and_no_instance(
    how: dict[str, Any], status: InstanceStatus, reason: str
) -> None:
    found = shown(decoded(**how))
    assert not ready(found)
    assert found.snapshot().known["a-rank-0"].status is status
    assert reasons(found) == {"a-rank-0": reason}


def test_a_condition_that_is_unknown_or_absent_is_not_ready() -> None:
    def unknown(document: Any) -> None:
        document["status"]["conditions"] = [{"type": "Ready", "status": "Unknown", "message": "node lost"}]

    def absent(document: Any) -> None:
        document["status"]["conditions"] = []

    assert reasons(shown(decoded(change=unknown))) == {
        "a-rank-0": "its pod's condition Ready is Unknown (node lost)"
    }
    assert reasons(shown(decoded(change=absent))) == {"a-rank-0": "its pod's condition Ready is missing"}


def test_a_pod_without_an_address_is_one_candidate() -> None:
    def pending(document: Any) -> None:
        del document["status"]["podIP"]

    found = shown(decoded(ready=False, change=pending), ports=(8000, 8001))
    assert reasons(found) == {"a": "its pod has no address yet"}
    assert found.put(decoded(), 1.0)
    assert ready(found).keys() == {"a-rank-0", "a-rank-1"}
    assert reasons(found) == {}


def test_a_pod_without_an_address_hides_no_rank_of_its_name() -> None:
    def pending(document: Any) -> None:
        del document["status"]["podIP"]

    found = shown(decoded(), decoded("a-rank-0", uid="u2", ready=False, change=pending))
    assert ready(found).keys() == {"a-rank-0"}
    assert found.remove("a-rank-0", 1.0), "explain does not name it any more"
    assert ready(found).keys() == {"a-rank-0"}
    assert found.expires_at is None
    found.clear()
    assert reasons(found) == {}


def test_a_restarted_container_is_another_life() -> None:
    found = shown(decoded(restarts=1))
    [before] = ready(found).values()
    assert before.incarnation == "u1/000000000001"
    assert before.registered_incarnation == "u1"
    assert before.registered_id == "a"
    assert not found.put(decoded(restarts=1), 1.0)

    def restarted(document: Any) -> None:
        document["status"]["containerStatuses"][0]["containerID"] = "containerd://" + "b" * 64

    assert found.put(decoded(restarts=1, change=restarted), 1.0)
    [after] = ready(found).values()
    assert after.incarnation == "u1/bbbbbbbbbbbb"


def test_a_restart_beside_the_container_that_declares_the_port_is_none() -> None:
    def beside(number: int) -> Any:
        def change(document: Any) -> None:
            document["spec"]["containers"].append({"name": "log", "ports": None})
            document["status"]["containerStatuses"] = [
                {"name": "log", "containerID": f"cri-o://{number}"},
                {"name": "worker", "containerID": "cri-o://w"},
            ]

        return change

    declared = {"ports": {"http": 8000}}
    found = shown(decoded(change=beside(1), **declared))
    assert next(iter(ready(found).values())).incarnation == "u1/w"
    assert not found.put(decoded(change=beside(2), **declared), 1.0)
    undeclared = shown(decoded(change=beside(1)))
    assert undeclared.put(decoded(change=beside(2)), 1.0)


def test_other_ports_change_the_instances_that_they_concern() -> None:
    found = shown(decoded(), decoded("b", uid="u2"), ports=(8000, 8001))
    before = ready(found)
    found.ports = (8000, 8002, 8003)
    assert any([*found.replace([decoded(), decoded("b", uid="u2")], 1.0)])
    after = ready(found)
    assert after["a-rank-0"] is before["a-rank-0"]
    assert (after["a-rank-1"].port, after["a-rank-2"].port) == (8002, 8003)
    assert after["a-rank-1"].incarnation == before["a-rank-1"].incarnation
    found.ports = (8000,)
    assert any([*found.replace([decoded(), decoded("b", uid="u2")], 1.0)])
    assert ready(found).keys() == {"a-rank-0", "b-rank-0"}, "at once: the pool says so"


def test_a_missing_pod_has_the_grace_and_one_that_terminates_has_none() -> None:
    found = shown(decoded(), decoded("b", uid="u2"))
    assert not found.remove("a", 10.0)
    assert found.expires_at == 10.5
    assert ready(found).keys() == {"a-rank-0", "b-rank-0"}
    assert not found.put(decoded(), 10.3), "it is back"
    assert found.expires_at is None
    assert not found.remove("a", 11.0)
    found.restart_grace(20.0)
    assert found.expires_at == 20.5
    assert found.expire(20.5)
    assert found.put(decoded("b", uid="u2", terminating=True), 20.6)
    assert not ready(found)
    assert found.remove("b", 20.7), "it was not ready: it has no grace"
    assert len(found) == 0


def test_another_pod_of_the_same_name_replaces_it() -> None:
    found = shown(decoded())
    assert not found.remove("a", 1.0)
    assert found.put(decoded(uid="u9"), 1.1)
    assert ready(found)["a-rank-0"].incarnation == "u9"
    assert found.expires_at is None


def test_clearing_removes_everybody_at_once_even_who_is_missing() -> None:
    found = shown(decoded(), decoded("b", uid="u2"))
    found.remove("a", 1.0)
    found.clear()
    assert not found.snapshot().known
    assert found.expires_at is None


def test_the_zone_is_the_pods_label_else_that_of_its_node() -> None:
    zones: dict[str, str] = {}
    labelled = {"topology.kubernetes.io/zone": "east"}
    found = shown(
        decoded(labels=labelled, node="n1"),
        decoded("b", uid="u2", node="n1"),
        zone_of=lambda node: zones.get(node),
    )
    assert {i.id: i.zone for i in ready(found).values()} == {"a-rank-0": "east", "b-rank-0": None}
    zones["n1"] = "west"
    assert found.refresh(["n1"])
    assert not found.refresh(["n1", "n2"])
    assert {i.id: i.zone for i in ready(found).values()} == {"a-rank-0": "east", "b-rank-0": "west"}
