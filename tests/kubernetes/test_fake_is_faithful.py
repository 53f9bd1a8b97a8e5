"""What a comparison with a real API server does not show of the fake: its times, its switches, its storage.

tests/system/test_the_fake_is_like_the_real_one.py asks both the same, and says that they answer alike.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.kubernetes.fake.api import FakeApi
from tests.kubernetes.fake.calls import Answer, Call, StatusError
from tests.kubernetes.fake.objects import LABELS, SERVICE, endpoint, endpoint_slice
from tests.kubernetes.fake.rv_log import Object, RvLog, Selector, SelectorError
from tests.kubernetes.fake.watching import Limits
from tests.kubernetes.fake.world import World

IN_VIRTUAL_TIME = True
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"


def call(params: Mapping[str, object], path: str = SLICES) -> Call:
    return Call("GET", path, {k: str(v) for k, v in params.items()}, {})


async def body(answer: Answer) -> bytes:
    return b"".join([chunk async for chunk in answer.body])


async def read(api: FakeApi, path: str = SLICES, /, **params: object) -> Any:
    """The answer to a list or a get, decoded; a Status has its HTTP status in `code`."""
    return json.loads(await body(await api.answer(call(params, path=path))))


class Stream:
    """One open watch, read line by line."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    async def line(self, within: float = 1.0) -> Object:
        async with asyncio.timeout(within):
            document: Object = json.loads(await anext(self.answer.body))
            return document

    async def silent(self, seconds: float) -> bool:
        reading = asyncio.ensure_future(anext(self.answer.body))
        done, _ = await asyncio.wait([reading], timeout=seconds)
        reading.cancel()
        await asyncio.wait([reading])
        return not done

    async def rest(self) -> list[Object]:
        return [json.loads(line) async for line in self.answer.body]


async def watch(api: FakeApi, **params: object) -> Stream:
    return Stream(await api.answer(call({"watch": 1, **params})))


def test_every_write_raises_one_counter_and_an_equal_write_is_none() -> None:
    log = RvLog(10)
    first = log.put("pods", {"metadata": {"name": "a"}})
    log.put("services", {"metadata": {"name": "b"}})
    assert log.put("pods", first) is first
    assert (first["metadata"]["resourceVersion"], log.rv) == ("11", 12)


def test_a_restore_goes_back_without_a_trace() -> None:
    log = RvLog(10)
    log.put("pods", {"metadata": {"name": "a"}})
    log.put("pods", {"metadata": {"name": "b"}})
    log.restore(11)
    assert [o["metadata"]["name"] for o in log.objects("pods", "default")] == ["a"]
    assert log.rv == 11
    assert log.changes_after(11, "pods", "default") == []


async def test_a_future_version_waits_three_seconds_and_is_504(api: FakeApi) -> None:
    started = asyncio.get_running_loop().time()
    answer = await api.answer(call({"resourceVersion": api.log.rv + 5}))
    assert asyncio.get_running_loop().time() - started == pytest.approx(3, abs=0.1)
    status = json.loads(await body(answer))
    assert (answer.status, answer.headers["Retry-After"], status["reason"]) == (504, "1", "Timeout")
    assert status["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"


async def test_it_lists_what_there_is_for_clients_with_a_rest_mapper(api: FakeApi) -> None:
    api.not_installed.add("inferencepools")
    assert (await read(api, "/api"))["versions"] == ["v1"]
    groups = {group["name"] for group in (await read(api, "/apis"))["groups"]}
    assert groups == {"discovery.k8s.io", "inference.networking.x-k8s.io", "llm-d.ai"}
    core = (await read(api, "/api/v1"))["resources"]
    assert {resource["name"] for resource in core} == {"nodes", "pods", "services"}
    assert (await api.answer(call({}, path="/apis/inference.networking.k8s.io/v1"))).status == 404


async def test_loopback_is_a_switch_of_the_fake() -> None:
    switched = FakeApi(allow_loopback=True)
    switched.put("endpointslices", endpoint_slice("x", endpoint("127.0.0.5")))
    with pytest.raises(StatusError):
        switched.put("endpointslices", endpoint_slice("y", endpoint("0.0.0.0")))


async def test_it_ends_cleanly_at_its_timeout(api: FakeApi) -> None:
    started = asyncio.get_running_loop().time()
    stream = await watch(api, resourceVersion=api.log.rv, timeoutSeconds=5)
    assert await stream.rest() == []
    assert asyncio.get_running_loop().time() - started == pytest.approx(5, abs=0.01)
    assert api.watches == 0


async def test_bookmarks_come_only_when_the_version_moved(api: FakeApi) -> None:
    stream = await watch(api, resourceVersion=api.log.rv, allowWatchBookmarks="true", timeoutSeconds=200)
    assert await stream.silent(100)
    stream = await watch(api, resourceVersion=api.log.rv, allowWatchBookmarks="true", timeoutSeconds=200)
    api.log.put("pods", {"metadata": {"name": "unrelated"}})
    marks = await stream.rest()
    assert [m["type"] for m in marks] == ["BOOKMARK"] * 4  # every 60 s, and 2 s before the end
    assert marks[0]["object"]["metadata"] == {"resourceVersion": str(api.log.rv)}
    assert marks[0]["object"]["endpoints"] is None


async def test_an_older_server_refuses_watch_list(api: FakeApi) -> None:
    api.watch_list = False
    refused = await read(api, watch=1, sendInitialEvents="true", resourceVersionMatch="NotOlderThan")
    assert (refused["code"], refused["reason"]) == (422, "Invalid")


async def test_a_server_that_shuts_down_ends_watches_and_refuses_new_ones(api: FakeApi) -> None:
    stream = await watch(api, resourceVersion=api.log.rv)
    rest = asyncio.create_task(stream.rest())
    await asyncio.sleep(1)
    api.shut_down()
    assert await rest == []
    answer = await api.answer(call({"watch": 1, "resourceVersion": api.log.rv}))
    assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
    seen = api.log.rv
    api.put("endpointslices", endpoint_slice("while-away"))
    api.come_back()
    (event,) = await (await watch(api, resourceVersion=seen)).rest()
    assert event["object"]["code"] == 410


async def test_the_longest_life_of_a_watch_is_the_servers(api: FakeApi) -> None:
    api.limits = Limits(longest=3)
    started = asyncio.get_running_loop().time()
    await (await watch(api, resourceVersion=api.log.rv, timeoutSeconds=300)).rest()
    assert asyncio.get_running_loop().time() - started == pytest.approx(3, abs=0.01)


async def test_an_event_may_be_lost(api: FakeApi) -> None:
    stream = await watch(api, resourceVersion=api.log.rv)
    with api.log.silently():
        api.log.delete("endpointslices", "default", "a")
    assert await stream.silent(10)
    assert len((await read(api))["items"]) == 2


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
