"""One delivery, on clocks that the test sets."""

import asyncio
import contextlib
import random

import pytest

from dispatcher.broker.contract.message import Claim, DispatchCandidate, Result
from dispatcher.broker.contract.queue import Queue, QueueError, QueueRules
from dispatcher.broker.memory.broker import MemoryBroker
from dispatcher.delivery.answer_limits import AnswerMemory
from dispatcher.delivery.gateway import Gateway, OutageLog
from dispatcher.delivery.route import Route
from dispatcher.delivery.sender import Delivery, Sender
from dispatcher.gates.admission import Admission
from dispatcher.gates.gate import Slot
from dispatcher.telemetry.metrics import QueueCounters
from tests.dispatcher.queued import claimed, submitted
from tests.dispatcher.target import Target
from tests.eventually import eventually

LEASE_MS = 15_000


class Clock:
    """The broker's and this process's, in milliseconds."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


def delivery(claim: Claim, lease_until: float) -> Delivery:
    request = claim.request
    candidate = DispatchCandidate(request.id, request.token, request.tenant, request.deadline_ms, 2)
    return Delivery(claim, Admission(candidate, contextlib.nullcontext(Slot()), Slot()), lease_until)


def sender(queue: Queue, gateway: Gateway, clock: Clock) -> Sender:
    return Sender(
        queue=queue,
        gateway=gateway,
        route=Route(),
        request_timeout=60,
        now_ms=clock.now_ms,
        observer=QueueCounters(),
        outage=OutageLog("pool"),
        rng=random.Random(1),
        monotonic=clock.monotonic,
    )


@pytest.mark.parametrize("swept", [False, True])
async def test_02_a_claim_whose_owner_stood_still_for_its_lease_is_not_sent(swept: bool) -> None:
    """The next claim has number 0 again if this one was released unsent, and 1 if it was taken away before."""
    clock = Clock()
    async with (
        Target() as target,
        MemoryBroker(clock.now_ms) as broker,
        broker.queue("q", QueueRules(lease_ms=LEASE_MS)) as queue,
        Gateway(target.url) as gateway,
    ):
        await submitted(broker, queue, "r1")
        claim, lease_until = await claimed(queue), clock.monotonic() + LEASE_MS / 1000
        clock.ms += LEASE_MS
        if swept:
            assert await queue.sweep() == 1
        await sender(queue, gateway, clock).deliver(delivery(claim, lease_until))
        assert target.asked == []
        following = await claimed(queue)
        assert following.attempt == (1 if swept else 0)
        assert following.fence != claim.fence


async def test_02_a_claim_is_sent_to_the_last_moment_of_its_lease() -> None:
    clock = Clock()
    async with (
        Target() as target,
        MemoryBroker(clock.now_ms) as broker,
        broker.queue("q", QueueRules(lease_ms=LEASE_MS)) as queue,
        Gateway(target.url) as gateway,
    ):
        request = await submitted(broker, queue, "r1")
        claim, lease_until = await claimed(queue), clock.monotonic() + LEASE_MS / 1000
        clock.ms += LEASE_MS - 1
        await sender(queue, gateway, clock).deliver(delivery(claim, lease_until))
        assert len(target.asked) == 1
        _, result = await queue.state("r1", request.token)
        assert result is not None
        assert result.status_code == 200


class Faulty(contextlib.AbstractAsyncContextManager[Slot]):
    """The admission of a gate whose end raises, as one of an installed package may."""

    async def __aexit__(self, *_: object) -> None:
        raise ZeroDivisionError


async def test_an_answer_is_stored_although_its_gate_fails_to_take_back_what_it_granted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    async with (
        Target() as target,
        MemoryBroker(clock.now_ms) as broker,
        broker.queue("q", QueueRules(lease_ms=LEASE_MS)) as queue,
        Gateway(target.url) as gateway,
    ):
        request = await submitted(broker, queue, "r1")
        claim = await claimed(queue)
        one = delivery(claim, clock.monotonic() + LEASE_MS / 1000)
        one.admission = Admission(one.admission.candidate, Faulty(), Slot())
        await sender(queue, gateway, clock).deliver(one)
        _, result = await queue.state("r1", request.token)
        assert result is not None
        assert result.status_code == 200
    assert "ZeroDivisionError" in caplog.text


async def test_an_answer_takes_memory_until_the_broker_has_it() -> None:
    """Also while the broker is away."""
    clock, memory, refused = Clock(), AnswerMemory(), 0
    back = asyncio.Event()
    async with (
        Target() as target,
        MemoryBroker(clock.now_ms) as broker,
        broker.queue("q", QueueRules(lease_ms=LEASE_MS)) as queue,
        Gateway(target.url, memory=memory) as gateway,
    ):
        finish = queue.finish

        async def away(claim: Claim, result: Result, *, dead_letter: bool = False) -> bool:
            nonlocal refused
            if not back.is_set():
                refused += 1
                raise QueueError("away")
            return await finish(claim, result, dead_letter=dead_letter)

        await submitted(broker, queue, "r1")
        one = delivery(await claimed(queue), clock.monotonic() + LEASE_MS / 1000)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(queue, "finish", away)
            delivering = asyncio.create_task(sender(queue, gateway, clock).deliver(one))
            await eventually(lambda: refused >= 2)
            assert memory.held == len('{"served": "r1"}')
            back.set()
            await delivering
        assert memory.held == 0


class Cancelled(contextlib.AbstractAsyncContextManager[Slot]):
    """The admission of a gate whose end is cancelled while it waits for the broker."""

    async def __aexit__(self, *_: object) -> None:
        raise asyncio.CancelledError


class Held:
    released = False

    def release(self) -> None:
        self.released = True


async def test_answer_memory_is_released_although_the_end_of_a_gate_is_cancelled() -> None:
    clock = Clock()
    async with (
        MemoryBroker(clock.now_ms) as broker,
        broker.queue("q", QueueRules(lease_ms=LEASE_MS)) as queue,
    ):
        await submitted(broker, queue, "r1")
        one = delivery(await claimed(queue), clock.monotonic() + LEASE_MS / 1000)
        one.admission = Admission(one.admission.candidate, Cancelled(), Slot())
        one.held = held = Held()
        with pytest.raises(asyncio.CancelledError):
            await sender(queue, None, clock).deliver(one)
        assert held.released
