"""One round trip at a time, in order, and nothing left behind by whoever goes away; channels over connections that come and go."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from redis.asyncio.client import PubSub
from redis.exceptions import ConnectionError as RedisConnectionError

from dispatcher.broker.contract.queue import QueueError
from dispatcher.broker.redis.client.batching import BATCH, MAX_RETAINED, Arguments, CommandBatcher
from dispatcher.broker.redis.client.connection import connect
from dispatcher.broker.redis.client.subscriptions import Subscriptions


class Broker:
    """Answers each operation with its last word, when it is let."""

    def __init__(self) -> None:
        self.batches: list[list[Arguments]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.away = False

    async def send(self, operations: Sequence[Arguments]) -> Sequence[Any]:
        await self.open.wait()
        if self.away:
            raise QueueError("away")
        self.batches.append(list(operations))
        return [words[-1] for words in operations]


async def test_what_is_asked_meanwhile_goes_together_and_in_order() -> None:
    broker = Broker()
    async with CommandBatcher(broker.send) as batcher:
        answers = await asyncio.gather(*(batcher.call(("a", number)) for number in range(5)))
    assert answers == [0, 1, 2, 3, 4]
    assert broker.batches == [[("a", number) for number in range(5)]]


async def test_a_trip_has_its_limit() -> None:
    broker = Broker()
    async with CommandBatcher(broker.send) as batcher:
        await asyncio.gather(*(batcher.call(("a", number)) for number in range(BATCH + 1)))
    assert [len(batch) for batch in broker.batches] == [BATCH, 1]


async def test_while_the_broker_is_away_all_fail_at_once_and_what_lasts_goes_first_afterwards() -> None:
    broker = Broker()
    async with CommandBatcher(broker.send) as batcher:
        broker.away = True
        broker.open.clear()
        first = asyncio.create_task(batcher.call(("first", 1), resend=True))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        second = asyncio.create_task(batcher.call(("second", 2), resend=True))
        third = asyncio.create_task(batcher.call(("third", 3)))
        await asyncio.sleep(0)
        broker.open.set()
        for task in (first, second, third):
            with pytest.raises(QueueError, match="away"):
                await task
        broker.away = False
        assert await batcher.call(("fourth", 4)) == 4
    assert [words for batch in broker.batches for words in batch] == [
        ("first", 1),
        ("second", 2),
        ("fourth", 4),
    ]


@pytest.mark.parametrize("when", ["before it is sent", "on its way"])
async def test_who_goes_away_has_it_undone(when: str) -> None:
    broker = Broker()
    async with CommandBatcher(broker.send) as batcher:
        broker.open.clear()
        asking = asyncio.create_task(batcher.call(("take", 7), undo=lambda answer: ("give", answer)))
        await asyncio.sleep(0)
        if when == "on its way":
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
        broker.open.set()
        assert await batcher.call(("next", 8)) == 8
    assert ("give", 7) in [words for batch in broker.batches for words in batch]


async def test_closing_says_what_is_still_to_be_said_and_takes_nothing_more() -> None:
    broker = Broker()
    async with CommandBatcher(broker.send) as batcher:
        last = asyncio.create_task(batcher.call(("last", 1), resend=True))
        await asyncio.sleep(0)
    assert await last == 1
    with pytest.raises(QueueError, match="closed"):
        await batcher.call(("more", 2))


async def test_a_fault_of_ours_reaches_everybody_and_silences_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = Broker()

    async def send(operations: Sequence[Arguments]) -> Sequence[Any]:
        if operations[0][0] == "faulty":
            raise KeyError("a fault of ours")
        return await broker.send(operations)

    async with CommandBatcher(send) as batcher:
        with pytest.raises(QueueError, match="internal error"):
            await batcher.call(("faulty", 1))
        assert await batcher.call(("sound", 2)) == 2
    assert "KeyError" in caplog.text


async def test_a_word_that_cannot_be_sent_is_the_askers_own_fault() -> None:
    broker = Broker()
    broker.open.clear()
    async with CommandBatcher(broker.send) as batcher:
        first = asyncio.create_task(batcher.call(("sound", 1)))
        with pytest.raises(ValueError, match="surrogates"):
            await batcher.call(("key", "\udcff"))
        broker.open.set()
        assert await first == 1


async def test_the_oldest_that_are_sent_again_are_dropped_when_they_are_too_many() -> None:
    broker = Broker()
    broker.away = True
    async with CommandBatcher(broker.send) as batcher:
        for first in range(0, MAX_RETAINED + 10, 5):
            calls = [batcher.call(("release", number), resend=True) for number in range(first, first + 5)]
            failed = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(error) for error in failed} == {QueueError}
        broker.away = False
        await batcher.call(("now", 0))
        sent = [words[1] for batch in broker.batches for words in batch if words[0] == "release"]
    assert sent == list(range(sent[0], sent[0] + MAX_RETAINED))
    assert sent[-1] == (MAX_RETAINED + 10) // 5 * 5 + 4


async def test_a_connection_is_not_closed_under_a_command_and_its_channel_is_subscribed_on_the_next(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way, may_end, broken = asyncio.Event(), asyncio.Event(), asyncio.Event()
    closed_under_way: list[bool] = []
    subscribe, get_message, aclose = PubSub.subscribe, PubSub.get_message, PubSub.aclose

    async def slow_subscribe(self: PubSub, *names: Any) -> Any:
        if "late" in names and not under_way.is_set():
            under_way.set()
            await may_end.wait()
            raise RedisConnectionError("reset")
        return await subscribe(self, *names)

    async def breaking_get_message(self: PubSub, *args: Any, **kwargs: Any) -> Any:
        if under_way.is_set() and not broken.is_set():
            broken.set()
            raise RedisConnectionError("reset")
        return await get_message(self, *args, timeout=0.01)

    async def seen_aclose(self: PubSub) -> None:
        closed_under_way.append(under_way.is_set() and not may_end.is_set())
        await aclose(self)

    monkeypatch.setattr(PubSub, "subscribe", slow_subscribe)
    monkeypatch.setattr(PubSub, "get_message", breaking_get_message)
    monkeypatch.setattr(PubSub, "aclose", seen_aclose)

    async def waiting(subscriptions: Subscriptions) -> None:
        async with subscriptions.subscribed("late") as changes:
            assert changes.count

    async with connect(redis_url) as client, Subscriptions(client, {"first": None}) as subscriptions:
        waiter = asyncio.create_task(waiting(subscriptions))
        await broken.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not closed_under_way
        may_end.set()
        await waiter
    assert closed_under_way[0] is False
