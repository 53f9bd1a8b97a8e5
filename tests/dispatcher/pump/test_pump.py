import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adsum.tasks import background
from dispatcher.broker.contract.message import Claim, DispatchCandidate, Request
from dispatcher.broker.contract.queue import Queue, QueueError, QueueRules
from dispatcher.broker.memory.broker import MemoryBroker
from dispatcher.gates.admission import Admission
from dispatcher.gates.built_in.limits import LocalConcurrencyGate
from dispatcher.gates.gate import Outcome, RefusedError, Scope, Slot
from dispatcher.pump.claiming import Claimer, in_order, pair
from dispatcher.pump.pump import Pump
from dispatcher.pump.slots import Slots
from dispatcher.telemetry.metrics import DispatcherTelemetry
from tests.eventually import eventually


@asynccontextmanager
async def granted() -> AsyncIterator[Slot]:
    yield Slot()


def admission(token: str, tenant: str = "t", size: int = 10) -> Admission:
    return Admission(DispatchCandidate(token, token, tenant, 1, size), granted(), Slot())


def claim(token: str, tenant: str = "t", size: int = 10) -> Claim:
    request = Request(token, b"x" * size, 1, tenant=tenant, token=token)
    return Claim(request, f"fence-{token}", 1, 0, 1)


def tokens(pairs: Iterable[tuple[Claim, Admission]]) -> list[tuple[str, str]]:
    return [(claim.request.token, admission.candidate.token) for claim, admission in pairs]


def test_what_was_admitted_goes_with_what_was_claimed() -> None:
    assert tokens(pair([claim("b"), claim("a")], [admission("a"), admission("b")])) == [
        ("b", "b"),
        ("a", "a"),
    ]


def test_another_head_needs_an_admission_as_large_and_of_its_tenant() -> None:
    claims = [claim("x", size=10), claim("y", size=11), claim("z", tenant="other")]
    assert tokens(pair(claims, [admission("a"), admission("b"), admission("c")])) == [("x", "a")]


@pytest.mark.parametrize(
    ("scope", "claimed"), [(Scope.TENANT, [("a", ""), ("c", "u")]), (Scope.QUEUE, [("a", "")])]
)
def test_nothing_overtakes_a_refusal_of_its_tenant_or_of_the_queue(
    scope: Scope, claimed: list[tuple[str, str]]
) -> None:
    refusal = RefusedError("no room", scope, asyncio.Event().wait)
    answers = [admission("a", "t"), refusal, admission("c", "t"), admission("d", "u")]
    asked = [DispatchCandidate(id, id, tenant, 1, 10) for id, tenant in zip("abcd", "tutu", strict=True)]
    batches, refused = in_order(asked, answers)
    assert [(batch.admissions[0].candidate.id, "".join(batch.skip)) for batch in batches] == claimed
    assert refused == [(asked[1], refusal)]


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from("tu"), st.integers(1, 3)), unique_by=lambda x: x[0]),
    st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from("tu"), st.integers(1, 3)), unique_by=lambda x: x[0]),
)  # fmt: skip
def test_each_claim_has_an_admission_of_its_own_that_covers_it(
    claims: list[tuple[str, str, int]], admissions: list[tuple[str, str, int]]
) -> None:
    made, given_ = [claim(*one) for one in claims], [admission(*one) for one in admissions]
    paired = list(pair(made, given_))
    assert len({claim.fence for claim, _ in paired}) == len({id(one) for _, one in paired}) == len(paired)
    for one, covering in paired:
        same = one.request.token == covering.candidate.token
        tenants = one.request.tenant, covering.candidate.tenant
        assert same or (len(set(tenants)) == 1 and covering.candidate.size >= len(one.request.payload))
    left_claims = [one for one in made if one.fence not in {claim.fence for claim, _ in paired}]
    left = [one.candidate for one in given_ if one not in [taken for _, taken in paired]]
    for one in left_claims:
        covers = [c for c in left if c.tenant == one.request.tenant and c.size >= len(one.request.payload)]
        assert not covers, "a claim goes without only if no admission is left that covers it"


class ScriptedGate:
    """Answers each question by `judge`; counts who was asked and which slots were left how."""

    def __init__(self, judge: Callable[[DispatchCandidate], RefusedError | None]) -> None:
        self.judge = judge
        self.fails = False
        self.asked: list[str] = []
        self.left: list[Outcome] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def budget(self) -> float:
        return 1.0

    @asynccontextmanager
    async def admit(self, candidate: DispatchCandidate) -> AsyncIterator[Slot]:
        self.asked.append(candidate.id)
        if (refusal := self.judge(candidate)) is not None:
            raise refusal
        slot = Slot()
        yield slot
        self.left.append(slot.outcome)
        if self.fails:
            raise ZeroDivisionError


@asynccontextmanager
async def pumping(
    gate: ScriptedGate, count: int = 5, limit: int = 100
) -> AsyncIterator[tuple[Queue, list[str], Slots, Pump]]:
    """A pump over a memory queue with `count` requests; what it launches is only written down."""
    launched: list[str] = []
    async with MemoryBroker() as broker, broker.queue("batch", QueueRules()) as queue:
        deadline_ms = await broker.now_ms() + 60_000
        for number in range(count):
            await queue.submit(Request(f"r{number}", b"x" * (number + 1), deadline_ms + number))
        slots = Slots(limit)
        observer = DispatcherTelemetry().of("batch", "pool")
        pump = Pump(queue, gate, slots, "me", lambda claim, *_: launched.append(claim.request.id), observer)
        running = asyncio.create_task(pump.run())
        try:
            yield queue, launched, slots, pump
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


async def test_a_closed_gate_is_asked_once_and_not_polled() -> None:
    opened = asyncio.Event()
    refusal = RefusedError("closed for now", Scope.QUEUE, opened.wait)
    gate = ScriptedGate(lambda candidate: None if opened.is_set() else refusal)
    async with pumping(gate) as (_, launched, slots, pump):
        await eventually(lambda: pump.blocked_by == "closed for now")
        asked = len(gate.asked)
        assert asked <= 5
        await asyncio.sleep(0.3)  # a poller would ask again
        assert len(gate.asked) == asked
        assert slots.in_use == 0, "who waits for a gate holds no slot"
        opened.set()
        await eventually(lambda: len(launched) == 5)
        assert pump.blocked_by == ""


async def test_a_gate_that_stays_closed_is_said_once_and_so_is_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    changes = asyncio.Queue[None]()
    open_ = False
    refusal = RefusedError("closed for now", Scope.QUEUE, changes.get)
    gate = ScriptedGate(lambda candidate: None if open_ else refusal)

    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "dispatcher.pump.pump"]

    async with pumping(gate) as (_, launched, _, pump):
        pump.closed_gate_log.after = 0.1
        await eventually(told)
        asked = len(gate.asked)
        for _ in range(5):
            changes.put_nowait(None)
        await eventually(lambda: len(gate.asked) >= asked + 5)
        await asyncio.sleep(0.3)  # one that repeats itself would
        assert told() == ["queue batch: nothing is sent: closed for now"]
        open_ = True
        changes.put_nowait(None)
        await eventually(lambda: len(launched) == 5)
    assert len(told()) == 2
    assert told()[1].startswith("queue batch: sends again, after ")


async def test_a_gate_that_is_closed_for_a_moment_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    opened = asyncio.Event()
    refusal = RefusedError("closed for now", Scope.QUEUE, opened.wait)
    gate = ScriptedGate(lambda candidate: None if opened.is_set() else refusal)
    async with pumping(gate) as (_, launched, _, pump):
        await eventually(lambda: pump.blocked_by)
        opened.set()
        await eventually(lambda: len(launched) == 5)
    assert "nothing is sent" not in caplog.text
    assert "sends again" not in caplog.text


async def test_nobody_overtakes_one_that_is_too_large() -> None:
    opened = asyncio.Event()
    refusal = RefusedError("too large", Scope.QUEUE, opened.wait)
    gate = ScriptedGate(lambda candidate: refusal if candidate.id == "r2" and not opened.is_set() else None)
    async with pumping(gate) as (_, launched, slots, pump):
        await eventually(lambda: pump.blocked_by == "too large")
        assert launched == ["r0", "r1"]
        assert gate.left == [Outcome.UNUSED] * 2, "r3 and r4 gave back what they were granted"
        assert slots.in_use == 2
        opened.set()
        await eventually(lambda: len(launched) == 5)


async def test_what_is_claimed_in_place_of_another_is_asked_for_again() -> None:
    """Another replica takes the head between the look and the claim."""
    stolen = asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        queue: Queue | None = None

        async def steal() -> None:
            if queue is not None and not stolen.is_set():
                await queue.claim(1, owner="another")
                stolen.set()

        def judge(candidate: DispatchCandidate) -> RefusedError | None:
            return None

        gate = ScriptedGate(judge)
        plain = gate.admit

        @asynccontextmanager
        async def admit(candidate: DispatchCandidate) -> AsyncIterator[Slot]:
            await steal()
            async with plain(candidate) as slot:
                yield slot

        gate.admit = admit  # type: ignore[method-assign]
        queue, launched, slots, _ = await stack.enter_async_context(pumping(gate, count=3, limit=1))
        await eventually(lambda: launched)
        assert launched == ["r1"], "larger than what was admitted, so asked for by itself"
        assert gate.asked.count("r1") >= 1
        await eventually(lambda: slots.in_use == 1)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_claim_that_its_gate_refuses_goes_back_and_so_does_every_slot(fails: bool) -> None:
    """Another replica took the head, and the gate has no room for what was claimed instead."""
    opened = asyncio.Event()
    refusal = RefusedError("too large", Scope.QUEUE, opened.wait)
    gate = ScriptedGate(lambda candidate: refusal if candidate.size > 1 else None)
    gate.fails = fails
    async with MemoryBroker() as broker, broker.queue("batch", QueueRules()) as queue:
        claimed = asyncio.Event()

        class Robbed:
            """The queue as a pump sees it whose candidates somebody else claims."""

            def __getattr__(self, name: str) -> Any:
                return getattr(queue, name)

            async def claim(self, *args: Any, **options: Any) -> Any:
                if not claimed.is_set():
                    await queue.claim(1, owner="another")
                    claimed.set()
                return await queue.claim(*args, **options)

        for number in range(2):
            await queue.submit(Request(f"r{number}", b"x" * (number + 1), 2**42 + number))
        slots, observer = Slots(1), DispatcherTelemetry().of("batch", "pool")
        pump = Pump(Robbed(), gate, slots, "me", lambda *_: None, observer)
        async with background(pump.run()):
            await eventually(claimed.is_set)
            await eventually(lambda: gate.left)
            await eventually(lambda: slots.in_use == 0)
            assert gate.left == [Outcome.UNUSED]
            assert (await queue.totals()).claimed == 1, "the other replica's"


async def test_what_is_left_over_makes_room_for_a_claim_that_nobody_asked_for() -> None:
    launched: list[str] = []
    gate = LocalConcurrencyGate(1)
    async with MemoryBroker() as broker, broker.queue("batch", QueueRules()) as queue, gate:
        await queue.submit(Request("r1", b"xx", 2**42))
        claimer = Claimer(queue, gate, "me", lambda claim, *_: launched.append(claim.request.id))
        gone = DispatchCandidate("r0", "r0", "default", 2**42, size=1)
        assert await claimer.claim_admitted([gone], frozenset()) == []
    assert launched == ["r1"]


async def test_a_pump_that_is_cancelled_twice_gives_back_what_its_gate_granted() -> None:
    """The second cancellation reaches the round while the gate has answered for one of two."""
    gate = ScriptedGate(lambda candidate: None)
    plain, asked = gate.admit, asyncio.Event()

    @asynccontextmanager
    async def admit(candidate: DispatchCandidate) -> AsyncIterator[Slot]:
        if candidate.id == "r1":
            asked.set()
            await asyncio.Event().wait()
        async with plain(candidate) as slot:
            yield slot

    gate.admit = admit  # type: ignore[method-assign]
    async with MemoryBroker() as broker, broker.queue("batch", QueueRules()) as queue:
        for number in range(2):
            await queue.submit(Request(f"r{number}", b"x", 2**42 + number))
        pump = Pump(queue, gate, Slots(9), "me", lambda *_: None, DispatcherTelemetry().of("batch", "pool"))
        running = asyncio.create_task(pump.run())
        await asked.wait()
        running.cancel()
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
        await eventually(lambda: gate.left == [Outcome.UNUSED])


async def test_a_fault_of_a_gate_does_not_end_its_queue(caplog: pytest.LogCaptureFixture) -> None:
    def judge(candidate: DispatchCandidate) -> RefusedError | None:
        raise ZeroDivisionError

    gate = ScriptedGate(judge)
    async with pumping(gate) as (_, launched, slots, pump):
        await eventually(lambda: "unexpected error, see the log: ZeroDivisionError" in pump.blocked_by)
        assert slots.in_use == 0
        assert launched == []
    assert "unexpected error, trying again" in caplog.text


async def test_a_broker_that_goes_away_is_waited_for() -> None:
    away = True

    def judge(candidate: DispatchCandidate) -> RefusedError | None:
        if away:
            raise QueueError("gone")
        return None

    async with pumping(ScriptedGate(judge)) as (_, launched, slots, pump):
        await eventually(lambda: pump.blocked_by == "the broker is away: gone")
        assert slots.in_use == 0
        away = False
        await eventually(lambda: len(launched) == 5)


async def test_a_held_up_tenant_lets_others_pass_and_comes_back() -> None:
    opened = asyncio.Event()
    refusal = RefusedError("quota", Scope.TENANT, opened.wait)
    gate = ScriptedGate(
        lambda candidate: refusal if candidate.tenant == "greedy" and not opened.is_set() else None
    )
    async with pumping(gate, count=0) as (queue, launched, slots, pump):
        deadline_ms = 2**42
        for number in range(6):
            tenant = "greedy" if number % 2 else "modest"
            await queue.submit(Request(f"r{number}", b"x", deadline_ms, tenant=tenant))
        await eventually(lambda: sorted(launched) == ["r0", "r2", "r4"])
        assert pump.blocked_by == ""
        await eventually(lambda: slots.in_use == 3)
        await asyncio.sleep(0.05)
        assert gate.asked.count("r1") == 1
        opened.set()
        await eventually(lambda: len(launched) == 6)


async def test_19_many_held_up_tenants_do_not_hold_up_the_others() -> None:
    opened = asyncio.Event()
    refusal = RefusedError("quota", Scope.TENANT, opened.wait)
    gate = ScriptedGate(
        lambda candidate: refusal if candidate.tenant != "modest" and not opened.is_set() else None
    )
    async with pumping(gate, count=0) as (queue, launched, slots, _):
        for number in range(60):
            await queue.submit(Request(f"g{number}", b"x", 2**42, tenant=f"greedy{number % 30}"))
        for number in range(10):
            await queue.submit(Request(f"m{number}", b"x", 2**42, tenant="modest"))
        await eventually(lambda: len(launched) == 10, within=90)
        await eventually(lambda: slots.in_use == 10)  # in between the pump holds those it looks for work for
        assert len(gate.asked) <= 2 * 70, "each was asked for about once, not once for each tenant"
        opened.set()
        await eventually(lambda: len(launched) == 70, within=90)
        assert launched.index("g0") < launched.index("g30")
