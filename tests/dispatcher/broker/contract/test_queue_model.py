"""Any sequence of calls: a broker does the same as the one in memory, nothing is lost, nothing is answered twice."""

import asyncio
import uuid
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from dispatcher.broker.contract.message import Claim, ErrorCode, Fault, Request, Result
from dispatcher.broker.contract.queue import LeasedResult, Queue, QueueRules
from dispatcher.broker.memory.broker import MemoryBroker
from dispatcher.broker.opening import open_broker

T = TypeVar("T")
TENANTS = st.sampled_from(["a", "b", "c", "d"])
IDS = st.sampled_from([f"r{n}" for n in range(6)])
SETTINGS = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
FAR = 4_000_000_000_000
RESULTS = st.sampled_from(
    [
        (200, None),
        (404, None),
        (0, ErrorCode.GATE_DROPPED),
        (0, ErrorCode.INFERENCE_ERROR),
        (429, ErrorCode.DEADLINE_EXCEEDED),
    ]
)


class BothBrokers(RuleBasedStateMachine):
    """Every call goes to a queue in memory and to one of the broker; what they say must be the same."""

    url = ""
    claims: Bundle[tuple[Claim, Claim]] = Bundle("claims")
    leases: Bundle[tuple[LeasedResult, LeasedResult]] = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.submitted = 0
        self.queues: list[Queue] = []

    @initialize(strict=st.booleans(), weight=st.sampled_from([0.5, 1.0, 3.0]))
    def open(self, strict: bool, weight: float) -> None:
        rules = QueueRules(lease_ms=3_600_000, strict_tiers=strict, weights={"a": weight})
        self.queues = [*self.runner.run(self._open(rules))]

    async def _open(self, rules: QueueRules) -> tuple[Queue, Queue]:
        memory = await self.stack.enter_async_context(MemoryBroker())
        other = await self.stack.enter_async_context(open_broker(self.url))
        name = uuid.uuid4().hex
        return (
            await self.stack.enter_async_context(memory.queue(name, rules)),
            await self.stack.enter_async_context(other.queue(name, rules)),
        )

    def teardown(self) -> None:
        with self.runner:
            self.runner.run(self.stack.aclose())

    def both(self, one: Awaitable[T], two: Awaitable[T]) -> tuple[T, T]:
        async def ask() -> tuple[T, T]:
            return await one, await two

        return self.runner.run(ask())

    def same(self, one: Awaitable[T], two: Awaitable[T]) -> T:
        first, second = self.both(one, two)
        assert first == second
        return first

    @rule(
        id=IDS,
        tenant=TENANTS,
        tier=st.integers(-1, 1),
        later=st.integers(0, 3),
        size=st.sampled_from([0, 9, 70_000]),
    )
    def submit(self, id: str, tenant: str, tier: int, later: int, size: int) -> None:
        request = Request(
            id, b"x" * size, FAR + later, tenant=tenant, tier=tier, created_ms=1, path=f"/{later}"
        )
        memory, tested = self.queues
        assert self.same(memory.submit(request), tested.submit(request)) == request
        self.submitted += 1

    @rule(limit=st.integers(0, 9), skip=st.sets(TENANTS, max_size=3))
    def peek(self, limit: int, skip: set[str]) -> None:
        memory, tested = self.queues
        self.same(memory.peek(limit, skip_tenants=skip), tested.peek(limit, skip_tenants=skip))

    @rule(target=claims, limit=st.integers(1, 9), skip=st.sets(TENANTS, max_size=2))
    def claim(self, limit: int, skip: set[str]) -> Any:
        memory, tested = self.queues
        seen, _ = self.both(memory.peek(limit, skip_tenants=skip), tested.peek(limit, skip_tenants=skip))
        ones, twos = self.both(
            memory.claim(limit, owner="o", skip_tenants=skip),
            tested.claim(limit, owner="o", skip_tenants=skip),
        )
        assert [claim.request for claim in ones] == [claim.request for claim in twos]
        assert [_counts(claim) for claim in ones] == [_counts(claim) for claim in twos]
        assert [claim.request.token for claim in ones] == [head.token for head in seen]
        return multiple(*zip(ones, twos, strict=True))

    @rule(claim=claims, what=RESULTS, letter=st.sampled_from(["", "why"]))
    def finish(self, claim: tuple[Claim, Claim], what: tuple[int, ErrorCode | None], letter: str) -> None:
        memory, tested = self.queues
        result = Result("", "", what[0], b"body", what[1], "said", 1)
        self.same(
            memory.finish(claim[0], result, dead_letter=letter),
            tested.finish(claim[1], result, dead_letter=letter),
        )

    @rule(claim=claims, delay=st.sampled_from([0, 3_600_000]), fault=st.sampled_from([None, *Fault]))
    def retry(self, claim: tuple[Claim, Claim], delay: int, fault: Fault | None) -> None:
        memory, tested = self.queues
        self.same(memory.retry(claim[0], delay, fault=fault), tested.retry(claim[1], delay, fault=fault))

    @rule(some=st.lists(claims, max_size=3), sent=st.booleans())
    def release(self, some: list[tuple[Claim, Claim]], sent: bool) -> None:
        memory, tested = self.queues
        ones, twos = [one for one, _ in some], [two for _, two in some]
        self.same(memory.release(ones, sent=sent), tested.release(twos, sent=sent))

    @rule(some=st.lists(claims, max_size=3))
    def extend(self, some: list[tuple[Claim, Claim]]) -> None:
        memory, tested = self.queues
        self.same(memory.extend([one for one, _ in some]), tested.extend([two for _, two in some]))

    @rule(id=IDS)
    def cancel(self, id: str) -> None:
        memory, tested = self.queues
        self.same(memory.cancel(id), tested.cancel(id))

    @rule(target=leases, limit=st.integers(1, 9))
    def lease(self, limit: int) -> Any:
        memory, tested = self.queues
        ones, twos = self.both(memory.lease_results(limit), tested.lease_results(limit))
        assert len(ones) == len(twos)
        by_token = {two.result.token: two for two in twos}
        return multiple(*((one, by_token[one.result.token]) for one in ones if one.result.token in by_token))

    @rule(leased=consumes(leases))
    def ack(self, leased: tuple[LeasedResult, LeasedResult]) -> None:
        memory, tested = self.queues
        assert _timeless(leased[0].result) == _timeless(leased[1].result)
        assert self.same(memory.ack_results([leased[0]]), tested.ack_results([leased[1]])) == 1

    @rule(id=IDS)
    def state(self, id: str) -> None:
        memory, tested = self.queues
        (state, result), (other, its_result) = self.both(memory.state(id), tested.state(id))
        assert state == other
        assert (result and _timeless(result)) == (its_result and _timeless(its_result))

    @invariant()
    def nothing_is_lost(self) -> None:
        if self.queues:
            memory, tested = self.queues
            totals = self.same(memory.totals(), tested.totals())
            ended = totals.succeeded + totals.failed + totals.expired + totals.cancelled + totals.dropped
            assert totals.submitted == self.submitted == ended + totals.pending


def _counts(claim: Claim) -> tuple[int, ...]:
    return (claim.delivery, claim.attempt, claim.failures, claim.disconnects)


def _timeless(result: Result) -> tuple[object, ...]:
    return (
        result.id,
        result.token,
        result.status_code,
        result.payload,
        result.error_code,
        result.error_message,
    )


def test_28_it_does_the_same_as_the_broker_in_memory(shared_url: str) -> None:
    class Machine(BothBrokers):
        url = shared_url

    run_state_machine_as_test(Machine, settings=SETTINGS)  # type: ignore[no-untyped-call]
