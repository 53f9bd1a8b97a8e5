"""The fake's EndpointSlice controller and its selectors do as the real ones."""

from typing import Any

import pytest

from tests.kubernetes.fake.objects import LABELS, SERVICE
from tests.kubernetes.fake.rv_log import Selector, SelectorError
from tests.kubernetes.fake.world import World

IN_VIRTUAL_TIME = True


class TestController:
    def test_no_pods_is_one_placeholder_with_null_lists(self) -> None:
        (only,) = World().slices()
        assert (only["endpoints"], only["ports"]) == (None, None)
        assert only["metadata"]["labels"] == {
            "kubernetes.io/service-name": SERVICE,
            "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
        }

    def test_the_placeholder_is_reused(self) -> None:
        world = World()
        (before,) = world.slices()
        world.pod("a")
        (after,) = world.slices()
        assert after["metadata"]["name"] == before["metadata"]["name"]
        world.delete("a")
        (empty,) = world.slices()
        assert empty["endpoints"] is None

    def test_labels_of_the_service_are_copied_its_selector_is_not(self) -> None:
        world = World(labels={"team": "x"})
        assert world.slices()[0]["metadata"]["labels"]["team"] == "x"
        assert not LABELS.keys() & world.slices()[0]["metadata"]["labels"].keys()
        world.change_service(labels={})
        assert "team" not in world.slices()[0]["metadata"]["labels"]

    @pytest.mark.parametrize(
        ("how", "publish", "conditions"),
        [
            ({}, False, (True, True, False)),
            ({"ready": False}, False, (False, False, False)),
            ({"terminating": True}, False, (False, True, True)),
            ({"ready": False}, True, (True, False, False)),
            ({"terminating": True}, True, (True, True, True)),
        ],
    )
    def test_conditions(
        self, how: dict[str, Any], publish: bool, conditions: tuple[bool, bool, bool]
    ) -> None:
        world = World(publish_not_ready=publish)
        world.pod("a", **how)
        said = world.slices()[0]["endpoints"][0]["conditions"]
        assert (said["ready"], said["serving"], said["terminating"]) == conditions

    def test_finished_pods_and_pods_without_address_are_left_out(self) -> None:
        world = World()
        world.pod("a", phase="Failed")
        world.api.put("pods", {**world.log.objects("pods", "default")[0], "metadata": {"name": "b"}})
        world.sync()
        assert world.slices()[0]["endpoints"] is None

    def test_at_most_so_many_in_a_slice_and_never_rebalanced(self) -> None:
        world = World(max_endpoints=2)
        world.pods("a", "b", "c", "d", "e")
        assert sorted(len(s["endpoints"]) for s in world.slices()) == [1, 2, 2]
        full = next(s for s in world.slices() if len(s["endpoints"]) == 2)
        world.delete(full["endpoints"][0]["targetRef"]["name"])
        assert sorted(len(s["endpoints"]) for s in world.slices()) == [1, 1, 2]

    def test_ports_by_name_make_parallel_slices(self) -> None:
        world = World(ports={"http": "web"})
        world.pod("a", ports={"web": 8000})
        world.pod("b", ports={"web": 9000})
        world.pod("c", ports={})
        assert sorted(repr([p["port"] for p in s["ports"] or []]) for s in world.slices()) == [
            "[8000]",
            "[9000]",
            "[]",
        ]

    def test_slices_beside_a_placeholder_go_with_their_pods(self) -> None:
        """A pod without the named port gives a slice without ports, as the placeholder has none (reconciler.go)."""
        world = World(ports={"http": "web"})
        (placeholder,) = world.slices()
        world.pod("a", ports={})
        assert [len(s["endpoints"]) for s in world.slices()] == [1]
        world.put({**placeholder, "metadata": {**placeholder["metadata"], "name": "beside"}})
        world.delete("a")
        (only,) = world.slices()
        assert (only["endpoints"], only["ports"]) == (None, None)

    def test_dual_stack_is_a_slice_for_each_family(self) -> None:
        world = World(families=("IPv4", "IPv6"))
        world.pod("a", "10.244.0.1", "2001:db8::1")
        kinds = {s["addressType"]: s["endpoints"][0]["addresses"] for s in world.slices()}
        assert kinds == {"IPv4": ["10.244.0.1"], "IPv6": ["2001:db8::1"]}

    def test_a_pod_reborn_at_its_address_changes_in_place(self) -> None:
        world = World()
        first = world.pod("a", "10.244.0.1")
        (before,) = world.slices()
        world.settled = False
        world.delete("a")
        second = world.pod("a", "10.244.0.1")
        world.sync()
        (after,) = world.slices()
        assert after["metadata"]["name"] == before["metadata"]["name"]
        assert first != second == after["endpoints"][0]["targetRef"]["uid"]

    def test_a_port_change_goes_through_a_moment_without_the_endpoint(self) -> None:
        """As seen on the real controller: `prototypes/kubetest/NOTES.md`."""
        world = World(max_endpoints=3)
        names = [f"p{i}" for i in range(9)]
        world.pods(*names)
        world.settled = False
        world.change_service(ports={"http": 9090})
        missing = set()
        for step in world.controller.steps(SERVICE):
            step()
            there = {e["targetRef"]["name"] for s in world.slices() for e in s["endpoints"] or ()}
            missing |= set(names) - there
        assert missing
        assert there == set(names)
        assert {p["port"] for s in world.slices() for p in s["ports"]} == {9090}

    def test_without_its_service_slices_are_collected_one_by_one(self) -> None:
        world = World(max_endpoints=1)
        world.pods("a", "b", "c")
        world.delete_service()
        steps = world.controller.steps(SERVICE)
        assert len(steps) == 3
        steps[0]()
        assert len(world.slices()) == 2

    def test_a_lost_selector_freezes_the_slices(self) -> None:
        world = World()
        world.pod("a")
        world.change_service(selector={})
        world.delete("a")
        assert len(world.slices()[0]["endpoints"]) == 1


@pytest.mark.parametrize(
    ("text", "labels", "expected"),
    [
        ("a=1", {"a": "1"}, True),
        ("a==1,b!=2", {"a": "1"}, True),
        ("a==1,b!=2", {"a": "1", "b": "2"}, False),
        ("a in (1, 2)", {"a": "2"}, True),
        ("a notin (1,2)", {"a": "2"}, False),
        ("!a", {}, True),
        ("x.y/a", {"x.y/a": ""}, True),
        ("", {}, True),
    ],
)
def test_selectors(text: str, labels: dict[str, str], expected: bool) -> None:
    assert Selector.parse(text).matches({"metadata": {"name": "n", "labels": labels}}) is expected


def test_a_selector_that_cannot_be_read() -> None:
    with pytest.raises(SelectorError):
        Selector.parse("a=b c")
    with pytest.raises(SelectorError):
        Selector.parse("", "spec.nodeName=x")
