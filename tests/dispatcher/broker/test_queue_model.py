"""Any sequence of calls: both brokers do the same, nothing is lost, nothing is answered twice."""

import asyncio
import uuid
from collections.abc import Awaitable, Sequence
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

from dispatcher.broker.memory.broker import MemoryBroker
from dispatcher.broker.message import Claim, ErrorCode, Request, Result
from dispatcher.broker.queue import LeasedResult, Queue, QueueRules, State
from dispatcher.broker.redis.broker import RedisBroker

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
    """Every call goes to a queue in memory and to one on Redis; what they say must be the same."""

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
        redis = await self.stack.enter_async_context(RedisBroker(self.url))
        name = uuid.uuid4().hex
        return (
            await self.stack.enter_async_context(memory.queue(name, rules)),
            await self.stack.enter_async_context(redis.queue(name, rules)),
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
        memory, redis = self.queues
        assert self.same(memory.submit(request), redis.submit(request)) == request
        self.submitted += 1

    @rule(limit=st.integers(0, 9), skip=st.sets(TENANTS, max_size=3))
    def peek(self, limit: int, skip: set[str]) -> None:
        memory, redis = self.queues
        self.same(memory.peek(limit, skip_tenants=skip), redis.peek(limit, skip_tenants=skip))

    @rule(target=claims, limit=st.integers(1, 9), skip=st.sets(TENANTS, max_size=2))
    def claim(self, limit: int, skip: set[str]) -> Any:
        memory, redis = self.queues
        seen, _ = self.both(memory.peek(limit, skip_tenants=skip), redis.peek(limit, skip_tenants=skip))
        ones, twos = self.both(
            memory.claim(limit, owner="o", skip_tenants=skip),
            redis.claim(limit, owner="o", skip_tenants=skip),
        )
        assert [claim.request for claim in ones] == [claim.request for claim in twos]
        assert [(c.delivery, c.attempt) for c in ones] == [(c.delivery, c.attempt) for c in twos]
        assert [claim.request.token for claim in ones] == [head.token for head in seen]
        return multiple(*zip(ones, twos, strict=True))

    @rule(claim=claims, what=RESULTS)
    def finish(self, claim: tuple[Claim, Claim], what: tuple[int, ErrorCode | None]) -> None:
        memory, redis = self.queues
        result = Result("", "", what[0], b"body", what[1], "said", 1)
        self.same(memory.finish(claim[0], result), redis.finish(claim[1], result))

    @rule(claim=claims, delay=st.sampled_from([0, 3_600_000]))
    def retry(self, claim: tuple[Claim, Claim], delay: int) -> None:
        memory, redis = self.queues
        self.same(memory.retry(claim[0], delay), redis.retry(claim[1], delay))

    @rule(some=st.lists(claims, max_size=3), sent=st.booleans())
    def release(self, some: list[tuple[Claim, Claim]], sent: bool) -> None:
        memory, redis = self.queues
        ones, twos = [one for one, _ in some], [two for _, two in some]
        self.same(memory.release(ones, sent=sent), redis.release(twos, sent=sent))

    @rule(some=st.lists(claims, max_size=3))
    def extend(self, some: list[tuple[Claim, Claim]]) -> None:
        memory, redis = self.queues
        self.same(memory.extend([one for one, _ in some]), redis.extend([two for _, two in some]))

    @rule(id=IDS)
    def cancel(self, id: str) -> None:
        memory, redis = self.queues
        self.same(memory.cancel(id), redis.cancel(id))

    @rule(target=leases, limit=st.integers(1, 9))
    def lease(self, limit: int) -> Any:
        memory, redis = self.queues
        ones, twos = self.both(memory.lease_results(limit), redis.lease_results(limit))
        assert len(ones) == len(twos)
        by_token = {two.result.token: two for two in twos}
        return multiple(*((one, by_token[one.result.token]) for one in ones if one.result.token in by_token))

    @rule(leased=consumes(leases))
    def ack(self, leased: tuple[LeasedResult, LeasedResult]) -> None:
        memory, redis = self.queues
        assert _timeless(leased[0].result) == _timeless(leased[1].result)
        assert self.same(memory.ack_results([leased[0]]), redis.ack_results([leased[1]])) == 1

    @rule(id=IDS)
    def state(self, id: str) -> None:
        memory, redis = self.queues
        (state, result), (other, its_result) = self.both(memory.state(id), redis.state(id))
        assert state == other
        assert (result and _timeless(result)) == (its_result and _timeless(its_result))

    @invariant()
    def nothing_is_lost(self) -> None:
        if self.queues:
            memory, redis = self.queues
            totals = self.same(memory.totals(), redis.totals())
            ended = totals.succeeded + totals.failed + totals.expired + totals.cancelled + totals.dropped
            assert totals.submitted == self.submitted == ended + totals.pending


def _timeless(result: Result) -> tuple[object, ...]:
    return (
        result.id,
        result.token,
        result.status_code,
        result.payload,
        result.error_code,
        result.error_message,
    )


def test_28_both_brokers_do_the_same_and_conserve_what_they_were_given(redis_url: str) -> None:
    class Machine(BothBrokers):
        url = redis_url

    run_state_machine_as_test(Machine, settings=SETTINGS)  # type: ignore[no-untyped-call]


class InTime(RuleBasedStateMachine):
    """Leases end, deadlines pass, retries fall due, by a clock that the test turns."""

    claims: Bundle[Claim] = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.now = 1_000
        self.deadlines: dict[str, int] = {}
        self.visible: dict[str, int] = {}
        self.holder: dict[str, str] = {}
        self.finished: set[str] = set()
        self.rules = QueueRules(lease_ms=100, max_deliveries=3)
        broker = MemoryBroker(lambda: self.now)
        self.queue: Queue = self.runner.run(broker.queue("q", self.rules).__aenter__())

    def teardown(self) -> None:
        with self.runner:
            self.everything_was_answered_once()

    def everything_was_answered_once(self) -> None:
        for _ in range(2):
            self.now += 10_000
            self.runner.run(self.queue.sweep())
        leased: Sequence[LeasedResult] = self.runner.run(self.queue.lease_results(10_000))
        tokens = [one.result.token for one in leased]
        assert sorted(tokens) == sorted(self.deadlines)
        answered = {one.result.token for one in leased if one.result.status_code == 200}
        assert answered == self.finished

    @rule(within=st.integers(1, 400), tenant=TENANTS)
    def submit(self, within: int, tenant: str) -> None:
        request = Request("same id", b"", self.now + within, tenant=tenant)
        self.runner.run(self.queue.submit(request))
        self.deadlines[request.token] = request.deadline_ms

    @rule(by=st.integers(1, 150))
    def turn_the_clock(self, by: int) -> None:
        self.now += by

    @rule(target=claims, limit=st.integers(1, 4))
    def claim(self, limit: int) -> Any:
        claims = self.runner.run(self.queue.claim(limit, owner="o"))
        for claim in claims:
            token = claim.request.token
            assert self.deadlines[token] > self.now
            assert self.visible.get(token, 0) <= self.now
            assert claim.leased_until_ms == self.now + 100
            self.holder[token] = claim.fence
        return multiple(*claims)

    @rule(claim=claims)
    def finish(self, claim: Claim) -> None:
        token = claim.request.token
        before = self.runner.run(self.queue.state("same id", token))[0]
        ours = self.runner.run(self.queue.finish(claim, Result("", "", 200, b"")))
        if before is State.CLAIMED:
            assert ours == (self.holder[token] == claim.fence)
            if ours:
                self.finished.add(token)

    @rule(claim=claims, delay=st.integers(0, 200))
    def retry(self, claim: Claim, delay: int) -> None:
        token = claim.request.token
        state, _ = self.runner.run(self.queue.state("same id", token))
        if self.runner.run(self.queue.retry(claim, delay)) and state is State.CLAIMED:
            self.visible[token] = self.now + delay

    @rule(claim=claims)
    def extend(self, claim: Claim) -> None:
        [ours] = self.runner.run(self.queue.extend([claim]))
        assert not ours or self.holder[claim.request.token] == claim.fence

    @invariant()
    def nothing_is_lost(self) -> None:
        totals = self.runner.run(self.queue.totals())
        ended = totals.succeeded + totals.failed + totals.expired + totals.cancelled + totals.dropped
        assert totals.submitted == len(self.deadlines) == ended + totals.pending
        assert totals.succeeded == len(self.finished)


def test_28_every_request_has_one_result_in_the_end() -> None:
    run_state_machine_as_test(InTime, settings=SETTINGS)  # type: ignore[no-untyped-call]
