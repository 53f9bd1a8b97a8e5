"""One delivery, on clocks that the test sets: its states, and when it is sent."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.broker.contract.message import Claim, DispatchCandidate, Request, Result
from dispatcher.broker.contract.queue import Queue, QueueError, QueueRules
from dispatcher.broker.memory.broker import MemoryBroker
from dispatcher.delivery.answer_limits import AnswerMemory
from dispatcher.delivery.gateway import Gateway, OutageLog
from dispatcher.delivery.route import Route
from dispatcher.delivery.sender import Delivery, DeliveryState, Sender
from dispatcher.gates.admission import Admission
from dispatcher.gates.gate import Slot
from dispatcher.telemetry.metrics import QueueCounters
from tests.dispatcher.queued import claimed, submitted
from tests.dispatcher.target import Target
from tests.eventually import eventually

LEASE_MS = 15_000
S = DeliveryState


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


def unsent() -> Delivery:
    return delivery(Claim(Request("r1", b"{}", 0), "fence", 1, 0, 0), 0.0)


@contextlib.asynccontextmanager
async def stage(
    memory: AnswerMemory | None = None,
) -> AsyncIterator[tuple[Clock, Target, MemoryBroker, Queue, Gateway]]:
    """A queue and a gateway on a clock of the test's."""
    clock = Clock()
    async with (
        Target() as target,
        MemoryBroker(clock.now_ms) as broker,
        broker.queue("q", QueueRules(lease_ms=LEASE_MS)) as queue,
        Gateway(target.url, memory=memory) as gateway,
    ):
        yield clock, target, broker, queue, gateway


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
    async with stage() as (clock, target, broker, queue, gateway):
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
    async with stage() as (clock, target, broker, queue, gateway):
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
    async with stage() as (clock, _target, broker, queue, gateway):
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
    memory, refused = AnswerMemory(), 0
    back = asyncio.Event()
    async with stage(memory) as (clock, _target, broker, queue, gateway):
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
    async with stage() as (clock, _, broker, queue, _):
        await submitted(broker, queue, "r1")
        one = delivery(await claimed(queue), clock.monotonic() + LEASE_MS / 1000)
        one.admission = Admission(one.admission.candidate, Cancelled(), Slot())
        one.held = held = Held()
        with pytest.raises(asyncio.CancelledError):
            await sender(queue, None, clock).deliver(one)
        assert held.released


@given(st.lists(st.sampled_from(["send", "settle", "abort", "lose"]), max_size=8))
def test_whatever_comes_first_counts(steps: list[str]) -> None:
    one, seen = unsent(), [S.CLAIMED]
    for step in steps:
        getattr(one, step)()
        if one.state is not seen[-1]:
            seen.append(one.state)
    assert len(seen) == len(set(seen))  # no way back
    if S.SETTLING in seen:
        assert one.state is S.SETTLING
        assert not one.aborted
    if one.aborted:
        assert (S.ABORTED_SENT in seen) <= (S.SENDING in seen)
        assert (S.ABORTED_UNSENT in seen) <= (S.SENDING not in seen)
    if "lose" in steps and S.SETTLING not in seen:
        assert one.state is S.LOST


@pytest.mark.parametrize(("sent", "state"), [(False, S.ABORTED_UNSENT), (True, S.ABORTED_SENT)])
async def test_only_what_is_being_sent_is_cancelled(sent: bool, state: DeliveryState) -> None:
    one = unsent()
    if sent:
        one.send()
    go_on = asyncio.Event()

    async def work() -> None:
        await go_on.wait()

    one.task = asyncio.create_task(work())
    await asyncio.sleep(0)
    one.abort()
    assert one.state is state
    go_on.set()
    await asyncio.wait([one.task])
    assert one.task.cancelled() is sent
