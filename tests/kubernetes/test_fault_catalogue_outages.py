"""Fault catalogue, rows 6, 9-11, 16, 17, 21, 22, 28: error answers, outages for an hour, first lists that cannot sync.

In virtual time and with the production constants: I4, I5, I8. Hours of outage pass in milliseconds.
"""

import asyncio
from functools import partial

import pytest

from discovery import ForbiddenError
from discovery.errors import DiscoveryTimeoutError
from discovery.watch import WatchState
from tests.kubernetes.fake.calls import StatusError
from tests.kubernetes.fake.event_recorder import EventRecorder
from tests.kubernetes.fake.faults import (
    Fault,
    Verb,
    answers,
    broken_before_headers,
    cut,
    html,
    in_stream,
    mapped,
    no_answer,
    preceded,
    refuses,
    sends,
)
from tests.kubernetes.fake.world import World, assert_rarely_asked, within

IN_VIRTUAL_TIME = True

HOUR = 3600.0

INTERNAL = StatusError(500, "InternalError", "etcdserver: leader changed")


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


async def long_outage(world: World, recorder: EventRecorder, begin: object, end: object) -> None:
    """I5 and I8 while it lasts, I4 after it: pods change meanwhile and nobody is told before it ends."""
    assert callable(begin)
    assert callable(end)
    known = dict(recorder.instances)
    started = now()
    begin()
    world.delete("a")
    world.pod("z")
    world.expire_watches()
    await asyncio.sleep(HOUR)
    assert_rarely_asked(world.transport.attempts, started, now())
    assert recorder.instances == known, "I8: the last set is kept"
    assert recorder.stream.health.state is WatchState.DEGRADED, "I8: and its age can be seen"
    assert recorder.stream.health.reason
    end()
    await within(35, lambda: recorder.uids == world.uids)
    await within(1, lambda: recorder.stream.health.state is WatchState.SYNCED)
    assert sorted(recorder.transitions()) == ["+z", "-a:deleted"]


EVERY_REQUEST: list[tuple[str, Fault]] = [
    ("row 22: 502 html", html(502)),
    ("row 22: 503 html", html(503)),
    ("row 22: 200 html", html(200)),
    ("row 17: 500", refuses(INTERNAL)),
    ("row 28: 401", refuses(StatusError(401, "Unauthorized", "Unauthorized"))),
    ("row 28: 403", refuses(StatusError(403, "Forbidden", "forbidden by an edited Role"))),
    ("404", refuses(StatusError(404, "NotFound", "the server could not find the requested resource"))),
    ("reset", broken_before_headers),
    ("empty body", answers(200, b"")),
    ("row 16: no JSON", answers(200, b"{]\n")),
    ("row 16: another kind", answers(200, b'{"kind":"PodList","metadata":{},"items":[]}\n')),
]

WATCHES_ONLY: list[tuple[str, Fault]] = [
    ("row 6: ends at once", cut(inside=None, how="end")),
    ("row 7: reset at once", cut(inside=None, how="reset")),
    ("row 16: no JSON", sends(b'{"type":"MODIFIED","object":{"metadata":}}\n')),
    ("row 16: unknown type", sends(b'{"type":"WEIRD","object":{"metadata":{"name":"x"}}}\n')),
    ("row 16: no slice", sends(b'{"type":"ADDED","object":{"metadata":[]}}\n')),
    ("row 17: 500 in the stream", in_stream(INTERNAL)),
    ("row 22: 200 html", html(200)),
    ("row 22: 502 html", html(502)),
    ("row 28: 403", refuses(StatusError(403, "Forbidden", "watch is not granted"))),
]


@pytest.mark.parametrize("fault", [f for _, f in EVERY_REQUEST], ids=[name for name, _ in EVERY_REQUEST])
async def test_rows_16_17_22_28_every_request_fails_for_an_hour(world: World, fault: Fault) -> None:
    world.pods("a", "b")
    script = world.api.faults
    async with world.recorder() as recorder:
        await long_outage(world, recorder, lambda: script.add(fault, times=None), script.clear)


@pytest.mark.parametrize("fault", [f for _, f in WATCHES_ONLY], ids=[name for name, _ in WATCHES_ONLY])
async def test_rows_06_16_17_22_every_watch_fails_for_an_hour(world: World, fault: Fault) -> None:
    """Lists go on working: the set may follow by them, but nobody is asked in a hot loop."""
    world.pods("a", "b")
    async with world.recorder() as recorder:
        started = now()
        world.api.faults.add(fault, on="watch", times=None)
        world.api.end_watches()
        await asyncio.sleep(HOUR)
        assert_rarely_asked_with_lists(world, started)
        assert recorder.names == {"a", "b"}
        assert not recorder.transitions()
        world.api.faults.clear()
        world.delete("a")
        await within(35, lambda: recorder.names == {"b"})


def assert_rarely_asked_with_lists(world: World, started: float) -> None:
    """I5 where each round may cost a relist and a watch: both are counted, and rounds are as rare as I5 wants."""
    for verb in ("list", "watch"):
        assert_rarely_asked([call.at for call in world.api.asked(verb)], started, now())


async def test_row_06_clean_ends_that_brought_something_are_no_failure(world: World) -> None:
    """A server that closes a stream quickly though it told something: resumed, without loss."""
    world.api.faults.add(cut(after=1, inside=None, how="end"), on="watch", times=None)
    async with world.recorder() as recorder:
        for i in range(30):
            world.pod(f"p{i}")
            await within(2, partial(recorder.knows, f"p{i}"))
        assert len(world.api.asked("list")) == 1


async def test_row_11_connection_refused_for_two_minutes(world: World) -> None:
    world.pods("a", "b")
    async with world.recorder() as recorder:
        started = now()
        world.transport.down = "connection refused"
        world.delete("a")
        world.api.end_watches()
        await asyncio.sleep(120)
        assert_rarely_asked(world.transport.attempts, started, now())
        assert recorder.names == {"a", "b"}
        health = recorder.stream.health
        assert health.state is WatchState.DEGRADED
        assert "refused" in (health.reason or "")
        world.transport.down = None
        await within(2, lambda: recorder.names == {"b"})
        assert recorder.transitions() == ["-a:deleted"]


async def test_row_11_and_for_an_hour(world: World) -> None:
    world.pods("a", "b")
    transport = world.transport
    async with world.recorder() as recorder:
        await long_outage(
            world,
            recorder,
            lambda: setattr(transport, "down", "connection refused"),
            lambda: setattr(transport, "down", None),
        )


async def test_row_11_the_backoff_starts_anew_only_after_two_healthy_minutes(world: World) -> None:
    """client-go resets it by the clock while it still fails, kube-rs by any sign of life; both are hot loops."""
    world.pods("a")
    async with world.recorder():
        world.transport.down = "connection refused"
        world.api.end_watches()
        await asyncio.sleep(300)
        since = now()
        for _ in range(60):  # up for a second, down for a minute
            world.transport.down = None
            await within(35, lambda: world.api.watches == 1)
            await asyncio.sleep(1)
            world.transport.down = "connection refused"
            world.api.end_watches()
            await asyncio.sleep(60)
        asked = [at for at in world.transport.attempts if at >= since]
        assert len(asked) <= (now() - since) / 7.5, (
            "three times an outage's rate: a list and a watch each round"
        )


async def test_row_09_bookmarks_that_dry_up(world: World) -> None:
    """A stream that is open and dead is given up after 2.5 of the intervals that it showed, long before its end."""
    world.pods("a", "b")
    frozen: list[bool] = []
    world.api.faults.add(mapped(lambda line: None if frozen else line), on="watch")
    async with world.recorder(watch_timeout=(600.0, 600.0)) as recorder:
        for i in range(5):
            world.log.put("pods", {"metadata": {"name": f"x{i}", "namespace": "elsewhere"}})
            await asyncio.sleep(40)
        frozen.append(True)
        world.delete("a")
        await within(155, lambda: recorder.names == {"b"})
        assert recorder.transitions() == ["-a:deleted"]


async def test_row_10_headers_that_never_come(world: World) -> None:
    world.pods("a", "b")
    async with world.recorder() as recorder:
        started = now()
        world.api.faults.add(no_answer, times=None)
        world.delete("a")
        world.api.end_watches()
        await asyncio.sleep(HOUR)
        assert_rarely_asked(world.transport.attempts, started, now())
        assert recorder.names == {"a", "b"}
        world.api.faults.clear()
        await within(50, lambda: recorder.names == {"b"})  # one header deadline more
