"""Fault catalogue, rows 16, 17, 21, 28: error answers, and first lists that cannot sync. In virtual time."""

import asyncio

import pytest

from discovery import ForbiddenError
from discovery.errors import DiscoveryTimeoutError
from discovery.watch import WatchState
from tests.kubernetes.fake.faults import (
    Fault,
    Verb,
    html,
    in_stream,
    no_answer,
    preceded,
    refuses,
)
from tests.kubernetes.fake.status import StatusError
from tests.kubernetes.fake.world import World, assert_rarely_asked, within

HOUR = 3600.0
INTERNAL = StatusError(500, "InternalError", "etcdserver: leader changed")

IN_VIRTUAL_TIME = True


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize(
    "junk",
    [
        b'{"type":"MODIFIED","object":{"metadata":}}\n',
        b'{"type":"WEIRD","object":{}}\n',
        b"null\n",
        b"[]\n",
        b'{"type":"ADDED","object":null}\n',
        b'{"type":"BOOKMARK","object":{}}\n',
        b"\xff\xfe\n",
        b'{"type":"DELETED","object":{"metadata":{},"addressType":"IPv4"}}\n',
    ],
)
async def test_row_16_one_bad_line(world: World, junk: bytes) -> None:
    world.pods("a", "b")
    async with world.recorder() as recorder:
        world.api.faults.add(preceded(junk), on="watch")
        world.api.end_watches()
        await asyncio.sleep(0.5)
        world.pod("c")
        await within(5, lambda: "c" in recorder.names)
        assert recorder.transitions() == ["+c"]


async def test_row_17_one_500_in_the_stream_is_forgotten(world: World) -> None:
    world.pods("a", "b")
    async with world.recorder() as recorder:
        world.api.faults.add(in_stream(INTERNAL), on="watch")
        world.delete("a")
        world.api.end_watches()
        await within(3, lambda: recorder.names == {"b"})


BUSY = StatusError(429, "TooManyRequests", "please try again later", retry_after=5)


@pytest.mark.parametrize(
    ("verb", "fault"),
    [("list", refuses(BUSY)), ("watch", refuses(BUSY)), ("watch", in_stream(BUSY))],
    ids=["list", "watch", "in stream"],
)
async def test_row_21_429_with_retry_after(world: World, verb: Verb, fault: Fault) -> None:
    world.pods("a", "b")
    async with world.recorder() as recorder:
        world.api.faults.add(fault, on=verb)
        world.delete("a")
        (world.expire_watches if verb == "list" else world.api.end_watches)()
        before = len(world.api.asked(verb))
        await within(2, lambda: len(world.api.asked(verb)) > before)
        refused_at = world.api.asked(verb)[before].at
        await within(12, lambda: recorder.names == {"b"})
        after = [at for at in world.transport.attempts if at > refused_at]
        assert after[0] - refused_at >= 5.0


async def test_row_21_a_server_that_shuts_down_and_comes_back(world: World) -> None:
    world.pods("a", "b")
    async with world.recorder() as recorder:
        world.api.shut_down()
        await asyncio.sleep(3)
        world.delete("a")
        await asyncio.sleep(3)
        world.api.come_back()
        await within(10, lambda: recorder.names == {"b"})
        assert recorder.transitions() == ["-a:deleted"]


async def test_row_28_the_role_is_taken_away_and_given_back(world: World) -> None:
    world.pods("a", "b")
    async with world.recorder() as recorder:
        started = now()
        world.api.allowed = set()
        world.delete("a")
        world.api.end_watches()
        await asyncio.sleep(HOUR)
        assert_rarely_asked(world.transport.attempts, started, now())
        health = recorder.stream.health
        assert health.state is WatchState.DEGRADED
        assert "endpointslices" in (health.reason or "")
        assert recorder.names == {"a", "b"}
        world.api.allowed = None
        await within(35, lambda: recorder.names == {"b"})


async def test_row_28_a_first_list_that_is_forbidden_fails_loudly(world: World) -> None:
    world.api.allowed = set()
    async with world.discovering() as discovery:
        with pytest.raises(ForbiddenError) as caught:
            await discovery.list_instances("dynamo", "decode", timeout=5)
        for word in ("endpointslices", "list", "watch", "discovery.k8s.io", "Role"):
            assert word in str(caught.value)


async def test_row_28_a_missing_watch_right_degrades_and_names_the_rule(world: World) -> None:
    world.pods("a")
    world.api.allowed = {("list", "endpointslices")}
    async with world.discovering() as discovery:
        try:
            async with discovery.watch("dynamo", "decode") as stream:
                await asyncio.sleep(20)
                reason = stream.health.reason
        except ForbiddenError as error:
            reason = str(error)
        assert reason is not None
        assert "watch" in reason
        assert "endpointslices" in reason


@pytest.mark.parametrize("fault", [html(200), html(502), no_answer, refuses(INTERNAL)])
async def test_a_first_list_that_cannot_sync_fails_loudly(world: World, fault: Fault) -> None:
    world.api.faults.add(fault, times=None)
    async with world.discovering() as discovery:
        started = now()
        with pytest.raises(DiscoveryTimeoutError) as caught:
            await discovery.list_instances("dynamo", "decode", timeout=8)
        assert now() - started <= 8.1
        assert "not synced yet" not in str(caught.value)
