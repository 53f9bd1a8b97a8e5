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
from tests.kubernetes.fake.objects import endpoint, endpoint_slice
from tests.kubernetes.fake.rv_log import Object, RvLog
from tests.kubernetes.fake.watching import Limits

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
