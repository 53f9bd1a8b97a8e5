"""The fake is only worth something if it behaves as kube-apiserver 1.37 and its EndpointSlice controller do."""

import asyncio
import gzip
import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.kubernetes.fake.api import FakeApi
from tests.kubernetes.fake.calls import Answer, Call
from tests.kubernetes.fake.objects import LABELS, SERVICE, endpoint, endpoint_slice
from tests.kubernetes.fake.rv_log import ExpiredError, Object, RvLog
from tests.kubernetes.fake.selector import Selector, SelectorError
from tests.kubernetes.fake.status import StatusError
from tests.kubernetes.fake.virtual_time import VIRTUAL, Backend
from tests.kubernetes.fake.watching import Limits
from tests.kubernetes.fake.world import World

SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"


@pytest.fixture
def anyio_backend() -> Backend:
    return VIRTUAL


@pytest.fixture
def api() -> FakeApi:
    made = FakeApi()
    for name in ("a", "b", "c"):
        made.put("endpointslices", endpoint_slice(name, endpoint(f"10.244.0.{ord(name)}", name)))
    return made


def call(params: Mapping[str, object], headers: Mapping[str, str] | None = None, path: str = SLICES) -> Call:
    return Call("GET", path, {k: str(v) for k, v in params.items()}, headers or {})


async def body(answer: Answer) -> bytes:
    return b"".join([chunk async for chunk in answer.body])


async def read(api: FakeApi, path: str = SLICES, /, **params: object) -> Any:
    """The document that a list or a get answers; its status under `code` when it is a Status."""
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


class TestVersions:
    def test_every_write_raises_one_counter_and_an_equal_write_is_none(self) -> None:
        log = RvLog(10)
        first = log.put("pods", {"metadata": {"name": "a"}})
        log.put("services", {"metadata": {"name": "b"}})
        assert log.put("pods", first) is first
        assert (first["metadata"]["resourceVersion"], log.rv) == ("11", 12)

    def test_the_past_can_be_read_until_it_is_compacted(self) -> None:
        log = RvLog(10)
        log.put("pods", {"metadata": {"name": "a"}, "spec": 1})
        log.put("pods", {"metadata": {"name": "a"}, "spec": 2})
        log.delete("pods", "default", "a")
        assert [o["spec"] for o in log.objects("pods", "default", at=11)] == [1]
        assert [o["spec"] for o in log.objects("pods", "default", at=12)] == [2]
        assert log.objects("pods", "default") == []
        log.compact()
        with pytest.raises(ExpiredError):
            log.objects("pods", "default", at=12)

    def test_a_restore_goes_back_without_a_trace(self) -> None:
        log = RvLog(10)
        log.put("pods", {"metadata": {"name": "a"}})
        log.put("pods", {"metadata": {"name": "b"}})
        log.restore(11)
        assert [o["metadata"]["name"] for o in log.objects("pods", "default")] == ["a"]
        assert log.rv == 11
        assert log.changes_after(11, "pods", "default") == []


class TestLists:
    async def test_a_list_has_the_version_of_the_store_and_items_without_a_kind(self, api: FakeApi) -> None:
        listed = await read(api)
        assert listed["metadata"]["resourceVersion"] == str(api.log.rv)
        assert listed["kind"] == "EndpointSliceList"
        assert [o["metadata"]["name"] for o in listed["items"]] == ["a", "b", "c"]
        assert "kind" not in listed["items"][0]

    async def test_only_the_selected_of_the_namespace(self, api: FakeApi) -> None:
        api.put("endpointslices", endpoint_slice("d", service="other"))
        api.put("endpointslices", endpoint_slice("e", namespace="default-b"))
        listed = await read(api, labelSelector=f"kubernetes.io/service-name={SERVICE}")
        assert [o["metadata"]["name"] for o in listed["items"]] == ["a", "b", "c"]

    async def test_a_future_version_waits_three_seconds_and_is_504(self, api: FakeApi) -> None:
        started = asyncio.get_running_loop().time()
        answer = await api.answer(call({"resourceVersion": api.log.rv + 5}))
        assert asyncio.get_running_loop().time() - started == pytest.approx(3, abs=0.1)
        status = json.loads(await body(answer))
        assert (answer.status, answer.headers["Retry-After"], status["reason"]) == (504, "1", "Timeout")
        assert status["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"

    async def test_an_old_version_is_fine_unless_it_must_be_exact(self, api: FakeApi) -> None:
        old = api.log.rv - 1
        api.log.compact()
        fresh = await read(api, resourceVersion=old, resourceVersionMatch="NotOlderThan")
        assert fresh["metadata"]["resourceVersion"] == str(api.log.rv)
        exact = await read(api, resourceVersion=old, resourceVersionMatch="Exact")
        assert (exact["code"], exact["reason"]) == (410, "Expired")
        assert (await read(api, resourceVersion=old, limit=1))["code"] == 410  # legacy Exact

    async def test_pages_show_one_version_and_expire_with_compaction(self, api: FakeApi) -> None:
        first = await read(api, limit=2)
        api.log.delete("endpointslices", "default", "c")
        token = first["metadata"]["continue"]
        assert first["metadata"]["remainingItemCount"] == 1
        second = await read(api, limit=2, **{"continue": token})
        assert [o["metadata"]["name"] for o in second["items"]] == ["c"]
        assert second["metadata"] == {"resourceVersion": first["metadata"]["resourceVersion"]}
        api.log.compact()
        gone = await read(api, limit=2, **{"continue": token})
        assert gone["code"] == 410
        rest = await read(api, limit=2, **{"continue": gone["metadata"]["continue"]})
        assert rest["items"] == []  # the inconsistent remainder

    @pytest.mark.parametrize(
        "params",
        [
            {"resourceVersionMatch": "NotOlderThan"},
            {"resourceVersionMatch": "Exact", "resourceVersion": "0"},
            {"resourceVersionMatch": "Exact", "resourceVersion": "1", "continue": "x"},
            {"resourceVersionMatch": "Newest", "resourceVersion": "1"},
            {"sendInitialEvents": "true"},
            {"watch": "1", "resourceVersionMatch": "NotOlderThan"},
            {"watch": "1", "sendInitialEvents": "true"},
        ],
    )
    async def test_contradictions_are_422(self, api: FakeApi, params: dict[str, str]) -> None:
        assert (await read(api, **params))["code"] == 422

    async def test_what_cannot_be_read(self, api: FakeApi) -> None:
        assert (await read(api, labelSelector="a=!"))["code"] == 400
        assert (await read(api, limit="many"))["code"] == 400
        assert (await read(api, resourceVersion="x"))["code"] == 500
        assert (await read(api, "/apis/apps/v1/namespaces/default/deployments"))["code"] == 404

    async def test_long_lists_are_compressed_for_those_who_can_read_it(self, api: FakeApi) -> None:
        many = [endpoint(f"10.1.{i // 250}.{i % 250 + 1}", f"p{i}") for i in range(1000)]
        for name in ("y", "z"):
            api.put("endpointslices", endpoint_slice(name, *many))
        plain = await api.answer(call({}))
        packed = await api.answer(call({}, {"Accept-Encoding": "gzip, deflate"}))
        assert packed.headers["Content-Encoding"] == "gzip"
        assert len(json.loads(gzip.decompress(await body(packed)))["items"]) == 5
        assert "Content-Encoding" not in plain.headers


class TestWatches:
    async def test_what_comes_after_the_version(self, api: FakeApi) -> None:
        stream = await watch(api, resourceVersion=api.log.rv - 1)
        assert (await stream.line())["object"]["metadata"]["name"] == "c"
        api.put("endpointslices", endpoint_slice("a"))
        event = await stream.line()
        assert (event["type"], event["object"]["kind"]) == ("MODIFIED", "EndpointSlice")
        assert event["object"]["endpoints"] is None
        api.log.delete("endpointslices", "default", "b")
        gone = await stream.line()
        assert gone["type"] == "DELETED"
        assert gone["object"]["endpoints"], "the previous content"
        assert gone["object"]["metadata"]["resourceVersion"] == str(api.log.rv)

    async def test_leaving_and_joining_the_selection(self, api: FakeApi) -> None:
        stream = await watch(
            api, resourceVersion=api.log.rv, labelSelector=f"kubernetes.io/service-name={SERVICE}"
        )
        api.put("endpointslices", endpoint_slice("a", service="other"))
        gone = await stream.line()
        assert gone["type"] == "DELETED"
        assert gone["object"]["metadata"]["labels"]["kubernetes.io/service-name"] == SERVICE
        api.put("endpointslices", endpoint_slice("a"))
        assert (await stream.line())["type"] == "ADDED"

    async def test_other_namespaces_are_not_told(self, api: FakeApi) -> None:
        stream = await watch(api, resourceVersion=api.log.rv)
        api.put("endpointslices", endpoint_slice("x", namespace="default-b"))
        assert await stream.silent(10)

    async def test_a_version_that_left_the_window_is_200_and_an_error_event(self, api: FakeApi) -> None:
        old = api.log.rv - 1
        api.log.forget()
        answer = await api.answer(call({"watch": 1, "resourceVersion": old}))
        (event,) = await Stream(answer).rest()
        assert answer.status == 200
        assert (event["type"], event["object"]["code"], event["object"]["reason"]) == (
            "ERROR",
            410,
            "Expired",
        )

    async def test_a_version_of_the_future_is_silence(self, api: FakeApi) -> None:
        stream = await watch(
            api, resourceVersion=api.log.rv + 2, allowWatchBookmarks="true", timeoutSeconds=300
        )
        for name in ("x", "y"):
            api.put("endpointslices", endpoint_slice(name))
        assert await stream.silent(299)  # no event, no bookmark

    async def test_it_ends_cleanly_at_its_timeout(self, api: FakeApi) -> None:
        started = asyncio.get_running_loop().time()
        stream = await watch(api, resourceVersion=api.log.rv, timeoutSeconds=5)
        assert await stream.rest() == []
        assert asyncio.get_running_loop().time() - started == pytest.approx(5, abs=0.01)
        assert api.watches == 0

    async def test_bookmarks_come_only_when_the_version_moved(self, api: FakeApi) -> None:
        stream = await watch(api, resourceVersion=api.log.rv, allowWatchBookmarks="true", timeoutSeconds=200)
        assert await stream.silent(100)
        stream = await watch(api, resourceVersion=api.log.rv, allowWatchBookmarks="true", timeoutSeconds=200)
        api.log.put("pods", {"metadata": {"name": "unrelated"}})
        marks = await stream.rest()
        assert [m["type"] for m in marks] == ["BOOKMARK"] * 4  # every 60 s, and 2 s before the end
        assert marks[0]["object"]["metadata"] == {"resourceVersion": str(api.log.rv)}
        assert marks[0]["object"]["endpoints"] is None

    async def test_bookmarks_must_be_asked_for(self, api: FakeApi) -> None:
        stream = await watch(api, resourceVersion=api.log.rv, timeoutSeconds=200)
        api.log.put("pods", {"metadata": {"name": "unrelated"}})
        assert await stream.rest() == []

    async def test_watch_list_ends_its_beginning_with_a_mark(self, api: FakeApi) -> None:
        stream = await watch(
            api, sendInitialEvents="true", resourceVersionMatch="NotOlderThan", allowWatchBookmarks="true"
        )
        events = [await stream.line() for _ in range(4)]
        assert [e["type"] for e in events] == ["ADDED"] * 3 + ["BOOKMARK"]
        versions = [int(e["object"]["metadata"]["resourceVersion"]) for e in events]
        assert versions == [1001, 1002, 1003, 1003]
        assert events[3]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}

    async def test_a_watch_from_nothing_is_a_watch_list_since_1_34(self, api: FakeApi) -> None:
        stream = await watch(api, allowWatchBookmarks="true")
        kinds = [(await stream.line())["type"] for _ in range(4)]
        assert kinds == ["ADDED"] * 3 + ["BOOKMARK"]

    async def test_an_older_server_refuses_watch_list(self, api: FakeApi) -> None:
        api.watch_list = False
        refused = await read(api, watch=1, sendInitialEvents="true", resourceVersionMatch="NotOlderThan")
        assert (refused["code"], refused["reason"]) == (422, "Invalid")

    async def test_watch_list_is_compressed_in_many_members(self, api: FakeApi) -> None:
        params = {"watch": 1, "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        asked = call(params, {"Accept-Encoding": "gzip"})
        answer = await api.answer(asked)
        first = await anext(answer.body)
        assert answer.headers["Content-Encoding"] == "gzip"
        assert json.loads(gzip.decompress(first))["type"] == "ADDED"

    async def test_a_server_that_shuts_down_ends_watches_and_refuses_new_ones(self, api: FakeApi) -> None:
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

    async def test_the_longest_life_of_a_watch_is_the_servers(self, api: FakeApi) -> None:
        api.limits = Limits(longest=3)
        started = asyncio.get_running_loop().time()
        await (await watch(api, resourceVersion=api.log.rv, timeoutSeconds=300)).rest()
        assert asyncio.get_running_loop().time() - started == pytest.approx(3, abs=0.01)

    async def test_an_event_may_be_lost(self, api: FakeApi) -> None:
        stream = await watch(api, resourceVersion=api.log.rv)
        with api.log.silently():
            api.log.delete("endpointslices", "default", "a")
        assert await stream.silent(10)
        assert len((await read(api))["items"]) == 2


class TestRights:
    async def test_no_or_another_token_is_401(self, api: FakeApi) -> None:
        api.tokens = {"right"}
        assert (await read(api))["code"] == 401
        wrong = await api.answer(call({}, {"Authorization": "Bearer wrong"}))
        right = await api.answer(call({}, {"Authorization": "Bearer right"}))
        assert (wrong.status, right.status) == (401, 200)

    async def test_403_says_what_is_missing(self, api: FakeApi) -> None:
        api.allowed = {("list", "endpointslices")}
        assert (await api.answer(call({}))).status == 200
        refused = await read(api, watch=1, resourceVersion=1)
        assert refused["code"] == 403
        assert 'cannot watch resource "endpointslices" in API group "discovery.k8s.io"' in refused["message"]


class TestWrites:
    @pytest.mark.parametrize(
        "address", ["127.0.0.1", "0.0.0.0", "169.254.1.1", "224.0.0.1", "fe80::1", "::1", "ten", "10.0.0.256"]
    )
    async def test_addresses_that_no_pod_has_are_422(self, api: FakeApi, address: str) -> None:
        kind = "IPv6" if ":" in address else "IPv4"
        refused = await api.answer(
            Call(
                "POST", SLICES, {}, {}, json.dumps(endpoint_slice("x", endpoint(address), kind=kind)).encode()
            )
        )
        assert refused.status == 422
        status = json.loads(await body(refused))
        assert status["details"]["causes"][0]["field"] == "endpoints[0].addresses[0]"

    async def test_the_family_must_be_right_and_an_endpoint_has_an_address(self, api: FakeApi) -> None:
        for wrong in (
            endpoint_slice("x", endpoint("2001:db8::1")),
            endpoint_slice("x", endpoint("10.0.0.1") | {"addresses": []}),
            endpoint_slice("x", endpoint("10.0.0.1"), kind="IPX"),
            endpoint_slice("x", *[endpoint("10.0.0.1")] * 1001),
        ):
            with pytest.raises(StatusError, match="is invalid"):
                api.put("endpointslices", wrong)

    async def test_loopback_is_a_switch_of_the_fake(self) -> None:
        switched = FakeApi(allow_loopback=True)
        switched.put("endpointslices", endpoint_slice("x", endpoint("127.0.0.5")))
        with pytest.raises(StatusError):
            switched.put("endpointslices", endpoint_slice("y", endpoint("0.0.0.0")))

    async def test_create_update_delete(self, api: FakeApi) -> None:
        document = json.dumps(endpoint_slice("x", endpoint("10.0.0.9"))).encode()
        path = f"{SLICES}/x"

        async def status(method: str, where: str) -> int:
            return (await api.answer(Call(method, where, {}, {}, document))).status

        assert [await status("PUT", path), await status("POST", SLICES), await status("POST", SLICES)] == [
            404,
            201,
            409,
        ]
        assert (await read(api, path))["kind"] == "EndpointSlice"
        assert [await status("DELETE", path), await status("GET", path)] == [200, 404]


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
