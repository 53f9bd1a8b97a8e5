"""The fake is only worth something if it behaves as kube-apiserver 1.37 and its EndpointSlice controller do."""

import asyncio
import gzip
import json

import pytest

from tests.kubernetes.fake.api import FakeApi
from tests.kubernetes.fake.calls import Call, StatusError
from tests.kubernetes.fake.direct_client import SLICES, Stream, body, call, read, watch
from tests.kubernetes.fake.objects import SERVICE, endpoint, endpoint_slice
from tests.kubernetes.fake.rv_log import ExpiredError, RvLog
from tests.kubernetes.fake.watching import Limits

IN_VIRTUAL_TIME = True


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
        assert (await read(api, resourceVersion="x"))["code"] == 400
        assert (await read(api, watch=1, resourceVersion="x"))["code"] == 500
        assert (await read(api, SLICES.replace("endpointslices", "slices")))["code"] == 404
        other_server = await api.answer(call({}, path="/apis/apps/v1/namespaces/default/deployments"))
        assert (other_server.status, await body(other_server)) == (404, b"404 page not found\n")

    async def test_it_lists_what_there_is_for_clients_with_a_rest_mapper(self, api: FakeApi) -> None:
        api.not_installed.add("inferencepools")
        assert (await read(api, "/api"))["versions"] == ["v1"]
        groups = {group["name"] for group in (await read(api, "/apis"))["groups"]}
        assert groups == {"discovery.k8s.io", "inference.networking.x-k8s.io", "llm-d.ai"}
        core = (await read(api, "/api/v1"))["resources"]
        assert {resource["name"] for resource in core} == {"nodes", "pods", "services"}
        assert (await api.answer(call({}, path="/apis/inference.networking.k8s.io/v1"))).status == 404

    async def test_long_lists_are_compressed_for_those_who_can_read_it(self, api: FakeApi) -> None:
        many = [endpoint(f"10.1.{i // 250}.{i % 250 + 1}", f"p{i}") for i in range(1000)]
        for name in ("y", "z"):
            api.put("endpointslices", endpoint_slice(name, *many))
        plain = await api.answer(call({}))
        packed = await api.answer(call({}, {"Accept-Encoding": "gzip, deflate"}))
        assert packed.headers["Content-Encoding"] == "gzip"
        assert len(json.loads(gzip.decompress(await body(packed)))["items"]) == 5
        assert "Content-Encoding" not in plain.headers


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
        plain = await api.answer(call(params, {"Accept-Encoding": "gzip"}))
        assert "Content-Encoding" not in plain.headers, "only with bookmarks (1.37, seen)"
        asked = call(params | {"allowWatchBookmarks": "true"}, {"Accept-Encoding": "gzip"})
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
