"""The source against a server that answers as told; tests/system has a real etcd."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest

from adsum.tasks import cancel_and_wait
from discovery import ForbiddenError
from discovery.etcd.client import EtcdTimings
from discovery.etcd.messages.etcd_pb2 import RangeRequest, RangeResponse, WatchRequest, WatchResponse
from discovery.etcd.source import EtcdSource
from discovery.etcd.url import EtcdSettings
from discovery.source import ComponentKey
from tests.discovery.etcd.scripted_etcd import (
    Metadata,
    RefusedError,
    Reported,
    ScriptedEtcd,
    created,
    found,
    record,
    serving,
    told,
)
from tests.eventually import eventually
from tests.in_time import by, with_more_time

KEY = ComponentKey("dynamo", "decode")
TIMINGS = EtcdTimings(call=60.0, probe=0.2, backoff=(0.01, 0.05))
Requests = AsyncIterator[WatchRequest]
Answers = AsyncIterator[WatchResponse]


@asynccontextmanager
async def reported_by(
    on_range: Callable[[RangeRequest, Metadata], RangeResponse],
    on_watch: Callable[[Requests, Metadata], Answers],
    timings: EtcdTimings = TIMINGS,
    **settings: Any,
) -> AsyncIterator[tuple[Reported, ScriptedEtcd, asyncio.Task[None]]]:
    async with serving(ScriptedEtcd(on_range, on_watch)) as etcd:
        source = EtcdSource(EtcdSettings((f"127.0.0.1:{etcd.port}",), **settings), timings)
        reported = Reported()
        running = asyncio.create_task(source.run(KEY, reported))
        try:
            yield reported, etcd, running
        finally:
            await cancel_and_wait(running)
            await source.aclose()


async def idle(requests: Requests, _: Metadata) -> Answers:
    """A watch that answers signs of life, and tells nothing."""
    async for _request in requests:
        yield created(5)


def holding(*names: str) -> Callable[[RangeRequest, Metadata], RangeResponse]:
    return lambda request, _: found(5, *map(record, names))


async def test_a_watch_begins_one_revision_after_the_range() -> None:
    asked: list[WatchRequest] = []
    metadata: list[Metadata] = []

    async def watch(requests: Requests, given: Metadata) -> Answers:
        metadata.append(given)
        async for request in requests:
            asked.append(request)
            yield created(5)

    async with reported_by(holding("w-0"), watch):
        await eventually(lambda: asked)
    create = asked[0].create_request
    assert (create.key, create.range_end) == (b"/adsum/dynamo/decode/", b"/adsum/dynamo/decode0")
    assert (create.start_revision, create.fragment, create.progress_notify) == (6, True, True)
    assert metadata[0]["hasleader"] == "true"


async def test_the_pages_of_a_range_are_of_one_revision() -> None:
    asked: list[RangeRequest] = []

    def pages(request: RangeRequest, _: Metadata) -> RangeResponse:
        asked.append(request)
        if request.revision == 0:
            return found(5, record("w-0"), more=True)
        return found(9, record("w-1"))

    async with reported_by(pages, idle) as (reported, _, _):
        await eventually(lambda: reported.sets)
    assert reported.sets[0] == {"w-0", "w-1"}
    assert (asked[1].revision, asked[1].key) == (5, b"/adsum/dynamo/decode/w-0\0")


async def test_a_page_that_promises_more_and_has_nothing_ends_the_range() -> None:
    async with reported_by(lambda request, _: found(5, more=True), idle) as (reported, _, _):
        await eventually(lambda: reported.sets == [set()])


async def test_fragments_are_one_change() -> None:
    async def watch(requests: Requests, _: Metadata) -> Answers:
        await anext(requests)
        yield created(5)
        yield told(6, [record("w-1")], fragment=True)
        yield told(6, [record("w-2")], deleted=["w-0"])
        async for _ in requests:
            yield created(6)

    async with reported_by(holding("w-0"), watch) as (reported, _, _):
        await eventually(lambda: len(reported.sets) == 2)
    assert reported.sets == [{"w-0"}, {"w-1", "w-2"}]


async def test_a_compaction_between_range_and_watch_is_part_of_normal_operation() -> None:
    ranges = iter([found(5, record("w-0")), found(9, record("w-1"))])
    watches = 0

    async def watch(requests: Requests, _: Metadata) -> Answers:
        nonlocal watches
        watches += 1
        await anext(requests)
        if watches == 1:
            yield WatchResponse(created=True, canceled=True, compact_revision=8)
            return
        yield created(9)
        async for _ in requests:
            yield created(9)

    async with reported_by(lambda request, _: next(ranges), watch) as (reported, _, _):
        await eventually(lambda: len(reported.sets) == 2)
        assert reported.sets == [{"w-0"}, {"w-1"}]
        assert len(reported.reasons) == 1  # "no answer yet"


async def test_a_compaction_during_a_range_begins_it_anew() -> None:
    answers = iter([None, found(5, record("w-1"))])

    def compacted_once(request: RangeRequest, _: Metadata) -> RangeResponse:
        if (answer := next(answers)) is None:
            raise RefusedError(
                grpc.StatusCode.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted"
            )
        return answer

    async with reported_by(compacted_once, idle) as (reported, _, _):
        await eventually(lambda: reported.sets == [{"w-1"}])
        assert len(reported.reasons) == 1


async def test_a_revision_that_goes_back_is_another_store() -> None:
    ranges = iter([found(50, record("w-0")), *(found(3, record("w-1")) for _ in range(100))])

    async def watch(requests: Requests, _: Metadata) -> Answers:
        async for _ in requests:
            yield created(3)

    timings = replace(TIMINGS, recovery=0.1)
    async with reported_by(lambda request, _: next(ranges), watch, timings, ttl=2) as (reported, _, _):
        await eventually(lambda: reported.sets[-1:] == [{"w-1"}])
        assert "etcd's revision went back from 50 to 3" in reported.reasons


async def test_an_idle_watch_that_gives_signs_of_life_stays() -> None:
    signs = 0

    def ranges(request: RangeRequest, _: Metadata) -> RangeResponse:
        nonlocal signs
        signs += request.limit == 1
        return found(5, record("w-0"))

    async with reported_by(ranges, idle) as (reported, _, _):
        await eventually(lambda: signs >= 3)
        assert len(reported.reasons) == 1
        assert reported.sets == [{"w-0"}]


async def test_a_member_that_gives_no_sign_of_life_is_given_up() -> None:
    async def ranges(request: RangeRequest, _: Metadata) -> RangeResponse:
        if request.limit == 1:
            await asyncio.sleep(60)
        return found(5, record("w-0"))

    timings = EtcdTimings(call=0.2, probe=0.1, backoff=(0.01, 0.05))
    async with reported_by(ranges, idle, timings) as (reported, etcd, _):
        await eventually(lambda: len(reported.reasons) > 1)
        assert reported.reasons[1] == f"etcd at 127.0.0.1:{etcd.port}: no answer within 0.2 s"
        await eventually(lambda: len(reported.sets) > 1)


@with_more_time(500)
async def test_who_is_missing_after_an_outage_has_time_to_register_again(ms: int) -> None:
    ranges = iter([found(5, record("back"), record("dead"), record("left", "draining")), *[found(9)] * 99])
    watches = 0

    async def watch(requests: Requests, _: Metadata) -> Answers:
        nonlocal watches
        watches += 1
        await anext(requests)
        if watches == 1:
            return
        yield created(9)
        yield told(10, [record("back")])
        async for _ in requests:
            pass

    async def clock() -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def read(request: RangeRequest, _: Metadata) -> RangeResponse:
        return found(10) if request.limit == 1 else next(ranges)

    timings = replace(TIMINGS, recovery=ms / 1000)
    async with reported_by(read, watch, timings, ttl=2) as (reported, _, _):
        async with by(await clock() + ms, clock):
            await eventually(
                lambda: any("1 of its workers" in reason for reason in reported.reasons), ms / 1000
            )
        await eventually(lambda: reported.sets[-1:] == [{"back"}])
    assert {"back"} not in reported.sets[:-1]
    assert set() not in reported.sets
    assert "etcd is back; 2 of its workers must register again" in reported.reasons
    assert "etcd is back; 1 of its workers must register again" in reported.reasons


@pytest.mark.parametrize(
    "text", ["etcdserver: invalid auth token", "etcdserver: revision of auth store is old"]
)
async def test_a_token_that_expired_is_renewed(text: str) -> None:
    """For a range and for a watch, which says it in its first answer."""

    def only_with_token_2(request: RangeRequest, metadata: Metadata) -> RangeResponse:
        if metadata["token"] == "token-1":
            raise RefusedError(grpc.StatusCode.UNAUTHENTICATED, text)
        return found(5, record("w-0"))

    async def only_with_token_3(requests: Requests, metadata: Metadata) -> Answers:
        async for _ in requests:
            if metadata["token"] == "token-2":
                yield WatchResponse(created=True, canceled=True, cancel_reason=text)
            else:
                yield told(6, [record("w-1")])

    settings = {"user": "me", "password": "s3cret"}
    async with reported_by(only_with_token_2, only_with_token_3, **settings) as (reported, etcd, _):
        await eventually(lambda: reported.sets[-1:] == [{"w-0", "w-1"}])
        assert etcd.passwords == ["s3cret"] * 3
        assert len(reported.reasons) == 1


def forbidden(request: RangeRequest, _: Metadata) -> RangeResponse:
    raise RefusedError(grpc.StatusCode.PERMISSION_DENIED, "etcdserver: permission denied")


async def test_a_right_that_is_missing_at_first_is_final() -> None:
    async with reported_by(forbidden, idle) as (_, _, running):
        with pytest.raises(ForbiddenError, match="permission denied"):
            await asyncio.wait_for(asyncio.shield(running), 60)


async def test_a_right_that_is_lost_later_degrades() -> None:
    ranges = iter([holding("w-0"), forbidden, *[holding("w-0")] * 100])

    async def ends(requests: Requests, _: Metadata) -> Answers:
        await anext(requests)
        yield created(5)

    async with reported_by(lambda *given: next(ranges)(*given), ends) as (reported, _, running):
        await eventually(lambda: any("permission denied" in reason for reason in reported.reasons))
        await eventually(lambda: len(reported.sets) > 2)
        assert not running.done()


async def test_one_record_that_is_larger_than_we_accept_is_said() -> None:
    huge = record("w-0")
    huge.value = b"x" * (17 * 1024 * 1024)
    limits: list[int] = []

    def too_large(request: RangeRequest, _: Metadata) -> RangeResponse:
        limits.append(request.limit)
        return found(5, huge)

    async with reported_by(too_large, idle) as (reported, _, _):
        await eventually(lambda: any("larger than max" in reason for reason in reported.reasons))
    assert limits[:4] == [250, 31, 3, 1]
    assert reported.sets == []


async def test_text_of_the_server_is_cut_and_escaped() -> None:
    def refuses(request: RangeRequest, _: Metadata) -> RangeResponse:
        raise RefusedError(grpc.StatusCode.UNAVAILABLE, "no\n\x1b[31mleader" + "x" * 2000)

    async with reported_by(refuses, idle) as (reported, _, _):
        await eventually(lambda: len(reported.reasons) > 1)
    assert reported.reasons[1].isprintable()
    assert len(reported.reasons[1]) < 400
