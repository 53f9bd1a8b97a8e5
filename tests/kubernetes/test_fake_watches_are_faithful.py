"""The fake watches as kube-apiserver 1.37 does."""

import asyncio
import gzip
import json

import pytest

from tests.kubernetes.fake.api import FakeApi
from tests.kubernetes.fake.direct_client import Stream, call, read, watch
from tests.kubernetes.fake.objects import SERVICE, endpoint_slice
from tests.kubernetes.fake.watching import Limits

IN_VIRTUAL_TIME = True


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
