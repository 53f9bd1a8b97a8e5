"""One round trip at a time, in order, and nothing is left behind by whoever goes away."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from dispatcher.broker.queue import QueueError
from dispatcher.broker.redis.round_trips import BATCH, RoundTrips, Words


class Broker:
    """Answers each operation with its last word, when it is let."""

    def __init__(self) -> None:
        self.trips: list[list[Words]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.away = False

    async def send(self, operations: Sequence[Words]) -> Sequence[Any]:
        await self.open.wait()
        if self.away:
            raise QueueError("away")
        self.trips.append(list(operations))
        return [words[-1] for words in operations]


async def test_what_is_asked_meanwhile_goes_together_and_in_order() -> None:
    broker = Broker()
    async with RoundTrips(broker.send) as trips:
        answers = await asyncio.gather(*(trips.ask(("a", number)) for number in range(5)))
    assert answers == [0, 1, 2, 3, 4]
    assert broker.trips == [[("a", number) for number in range(5)]]


async def test_a_trip_has_its_limit() -> None:
    broker = Broker()
    async with RoundTrips(broker.send) as trips:
        await asyncio.gather(*(trips.ask(("a", number)) for number in range(BATCH + 1)))
    assert [len(trip) for trip in broker.trips] == [BATCH, 1]


async def test_while_the_broker_is_away_all_fail_at_once_and_what_lasts_goes_first_afterwards() -> None:
    broker = Broker()
    async with RoundTrips(broker.send) as trips:
        broker.away = True
        broker.open.clear()
        first = asyncio.create_task(trips.ask(("first", 1), lasting=True))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        second = asyncio.create_task(trips.ask(("second", 2), lasting=True))
        third = asyncio.create_task(trips.ask(("third", 3)))
        await asyncio.sleep(0)
        broker.open.set()
        for task in (first, second, third):
            with pytest.raises(QueueError, match="away"):
                await task
        broker.away = False
        assert await trips.ask(("fourth", 4)) == 4
    assert [words for trip in broker.trips for words in trip] == [("first", 1), ("second", 2), ("fourth", 4)]


@pytest.mark.parametrize("when", ["before it is sent", "on its way"])
async def test_who_goes_away_has_it_undone(when: str) -> None:
    broker = Broker()
    async with RoundTrips(broker.send) as trips:
        broker.open.clear()
        asking = asyncio.create_task(trips.ask(("take", 7), undo=lambda answer: ("give", answer)))
        await asyncio.sleep(0)
        if when == "on its way":
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
        broker.open.set()
        assert await trips.ask(("next", 8)) == 8
    assert ("give", 7) in [words for trip in broker.trips for words in trip]


async def test_closing_says_what_is_still_to_be_said_and_takes_nothing_more() -> None:
    broker = Broker()
    async with RoundTrips(broker.send) as trips:
        last = asyncio.create_task(trips.ask(("last", 1), lasting=True))
        await asyncio.sleep(0)
    assert await last == 1
    with pytest.raises(QueueError, match="closed"):
        await trips.ask(("more", 2))


async def test_a_fault_of_ours_reaches_everybody_and_silences_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = Broker()

    async def send(operations: Sequence[Words]) -> Sequence[Any]:
        if operations[0][0] == "faulty":
            raise KeyError("a fault of ours")
        return await broker.send(operations)

    async with RoundTrips(send) as trips:
        with pytest.raises(QueueError, match="fault of ours"):
            await trips.ask(("faulty", 1))
        assert await trips.ask(("sound", 2)) == 2
    assert "KeyError" in caplog.text


async def test_a_word_that_cannot_be_sent_is_the_askers_own_fault() -> None:
    broker = Broker()
    broker.open.clear()
    async with RoundTrips(broker.send) as trips:
        first = asyncio.create_task(trips.ask(("sound", 1)))
        with pytest.raises(ValueError, match="surrogates"):
            await trips.ask(("key", "\udcff"))
        broker.open.set()
        assert await first == 1
