"""Leases, deadlines and retries by a clock that the test turns: every request has one result in the end."""

import asyncio
from collections.abc import Sequence
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from dispatcher.broker.contract.message import Claim, Request, Result
from dispatcher.broker.contract.queue import LeasedResult, Queue, QueueRules, State
from dispatcher.broker.memory.broker import MemoryBroker

TENANTS = st.sampled_from(["a", "b", "c", "d"])
SETTINGS = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


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
