"""Delivers one claim: sends its request and settles it in the broker as finished, retried or released."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from adsum.tracing.span import Tracer
from adsum.tracing.trace_context import traced
from dispatcher.broker.contract.message import Claim, DispatchCandidate, ErrorCode
from dispatcher.broker.contract.queue import Queue, QueueError
from dispatcher.delivery.answer_limits import HeldAnswer
from dispatcher.delivery.delivery_spans import DeliverySpans
from dispatcher.delivery.gateway import Gateway, GatewayAnswer, NoAnswer, OutageLog
from dispatcher.delivery.route import IllegalRequestError, Route
from dispatcher.delivery.verdict import (
    DEFAULT_LIMITS,
    AttemptLimits,
    Finish,
    Release,
    Verdict,
    failure,
    judge,
    outcome_of,
)
from dispatcher.gates.admission import Admission
from dispatcher.gates.gate import RefusedError


class DispatchObserver(Protocol):
    """Observes one queue: counters, and tests that stop a process at a certain step. Its methods run on the path of each
    request: they must return at once.
    """

    def refused(self, candidate: DispatchCandidate, refusal: RefusedError) -> None:
        """The gate refused the candidate."""

    def claimed(self, claim: Claim) -> None:
        """A claim was made; it holds a slot."""

    def sent(self, claim: Claim) -> None: ...

    def answered(self, claim: Claim, answer: GatewayAnswer | NoAnswer, seconds: float) -> None:
        """The attempt ended after `seconds`; its result is not stored yet."""

    def settled(self, claim: Claim, verdict: Verdict, accepted: bool) -> None:
        """The broker has the verdict. `accepted` False: it ignored it, since the claim was cancelled or taken over."""

    def slot_released(self) -> None:
        """The slot of a claim is free again, however the claim ended."""

    def sweeping(self) -> None:
        """The queue is about to release claims whose lease has ended."""


INITIAL_PAUSE = 0.05
MAX_PAUSE = 1.0
"""Seconds between two tries to settle a claim while the broker is away."""

log = logging.getLogger(__name__)


class DeliveryState(Enum):
    """The states of a delivery."""

    CLAIMED = "claimed"
    SENDING = "sending"
    SETTLING = "settling"
    """The verdict is known and must reach the broker: nothing can abort it."""
    ABORTED_UNSENT = "aborted before it was sent"
    ABORTED_SENT = "aborted while it was sent"
    LOST = "lost"
    """The request was cancelled, or another dispatcher holds it: nothing is settled."""


_TRANSITIONS: Mapping[DeliveryState, frozenset[DeliveryState]] = {
    DeliveryState.CLAIMED: frozenset(DeliveryState) - {DeliveryState.CLAIMED, DeliveryState.ABORTED_SENT},
    DeliveryState.SENDING: frozenset(
        {DeliveryState.SETTLING, DeliveryState.ABORTED_SENT, DeliveryState.LOST}
    ),
    DeliveryState.SETTLING: frozenset(),
    DeliveryState.ABORTED_UNSENT: frozenset({DeliveryState.LOST}),
    DeliveryState.ABORTED_SENT: frozenset({DeliveryState.LOST}),
    DeliveryState.LOST: frozenset(),
}


@dataclass(slots=True)
class Delivery:
    """A claim that this process delivers. Events without an arrow change nothing.

        CLAIMED ──send──► SENDING ──settle──► SETTLING ──► settled in the broker
         │ │                 │                  ▲
         │ └─────────────────┼──────settle──────┘
       abort               abort
         ▼                   ▼
        ABORTED_UNSENT    ABORTED_SENT ──► released to its queue

        lose: from every state but SETTLING to LOST ──► nothing is settled

    `lease_until`: the lease lasts at least so long, in seconds of the monotonic clock.
    """

    claim: Claim
    admission: Admission
    lease_until: float
    state: DeliveryState = DeliveryState.CLAIMED
    task: asyncio.Task[None] | None = field(default=None, repr=False)
    held: HeldAnswer | None = field(default=None, repr=False)
    """The memory of its answer, until the broker has it."""

    @property
    def aborted(self) -> bool:
        """The delivery sends nothing more and has no verdict."""
        return self.state in (DeliveryState.ABORTED_UNSENT, DeliveryState.ABORTED_SENT, DeliveryState.LOST)

    def send(self) -> None:
        """The request is about to be sent."""
        self._transition(DeliveryState.SENDING)

    def settle(self) -> None:
        """The verdict is known; ignored after an abort."""
        self._transition(DeliveryState.SETTLING)

    def abort(self) -> None:
        """Stop sending and close the connection, unless the answer is complete."""
        sending = self.state is DeliveryState.SENDING
        self._abort(DeliveryState.ABORTED_SENT if sending else DeliveryState.ABORTED_UNSENT)

    def lose(self) -> None:
        """The claim is not ours any more: stop sending, settle nothing."""
        self._abort(DeliveryState.LOST)

    def _abort(self, state: DeliveryState) -> None:
        sending = self.state is DeliveryState.SENDING
        # A task that is cancelled before it starts never runs its `finally`: one that is not sending checks `aborted`.
        if self._transition(state) and sending and self.task is not None:
            self.task.cancel()

    def _transition(self, state: DeliveryState) -> bool:
        """Change the state; False if there is no such arrow."""
        if state not in _TRANSITIONS[self.state]:
            return False
        self.state = state
        return True


@dataclass(frozen=True, slots=True)
class Sender:
    """Delivers the claims of one queue. `request_timeout`: seconds for one attempt."""

    queue: Queue
    gateway: Gateway
    route: Route
    request_timeout: float
    now_ms: Callable[[], int]
    observer: DispatchObserver
    outage: OutageLog
    rng: random.Random
    tracer: Tracer | None = None
    limits: AttemptLimits = DEFAULT_LIMITS
    monotonic: Callable[[], float] = time.monotonic

    async def deliver(self, delivery: Delivery) -> None:
        """Returns when the claim is settled, aborted or lost; its admission ends with the answer."""
        spans = None
        try:
            if self.tracer is not None:
                spans = DeliverySpans(self.tracer, self.queue.name, delivery.claim, self.now_ms())
                traced(spans.context)
            verdict = None if delivery.aborted else await self._attempt(delivery, spans)
            delivery.settle()
            await delivery.admission.release()
            if verdict is not None and delivery.state is DeliveryState.SETTLING:
                await self._settle(delivery, verdict, spans)
        finally:
            # before anything waits: whoever cancels the wait takes neither from the others
            if delivery.held is not None:
                delivery.held.release()
            if spans is not None:
                _end(spans, delivery)
            await delivery.admission.release()

    async def _attempt(self, delivery: Delivery, spans: DeliverySpans | None) -> Verdict:
        claim, now_ms = delivery.claim, self.now_ms()
        if delivery.lease_until <= self.monotonic():  # the process was frozen: another may hold the claim
            return Release()
        remaining = (claim.request.deadline_ms - now_ms) / 1000
        if remaining <= 0:
            late = "the deadline passed before the request could be sent"
            return failure(claim, ErrorCode.DEADLINE_EXCEEDED, late, now_ms, attempts=claim.attempt)
        timeout = min(self.request_timeout, remaining)
        try:
            path = self.route.request_path(claim.request.path)
            headers = self.route.request_headers(claim.request, claim.attempt, max(1, int(timeout * 1000)))
        except IllegalRequestError as error:
            return failure(claim, ErrorCode.INVALID_REQUEST, str(error), now_ms, attempts=claim.attempt)
        if spans is not None:
            spans.send(headers, self.route.headers)
        delivery.send()
        self.observer.sent(claim)
        begun = time.perf_counter()
        answer = await self.gateway.post(path, headers, claim.request.payload, timeout)
        delivery.held = answer.held if isinstance(answer, GatewayAnswer) else None
        delivery.settle()
        if spans is not None:
            spans.answered(answer)
        self._report_reachability(answer)
        self.observer.answered(claim, answer, time.perf_counter() - begun)
        retry_after = answer.retry_after if isinstance(answer, GatewayAnswer) else None
        await delivery.admission.release(outcome_of(answer), int((retry_after or 0) * 1000))
        return judge(claim, answer, self.now_ms(), self.rng, self.limits)

    def _report_reachability(self, answer: GatewayAnswer | NoAnswer) -> None:
        if isinstance(answer, GatewayAnswer):
            self.outage.answered()
        elif not answer.reached:
            self.outage.unreachable(answer.reason)

    async def _settle(self, delivery: Delivery, verdict: Verdict, spans: DeliverySpans | None) -> None:
        requeueing = None if spans is None else spans.requeue(verdict)
        pause = INITIAL_PAUSE
        while True:
            try:
                accepted = await self._settle_once(delivery.claim, verdict)
                break
            except QueueError as error:
                log.debug("queue %s: cannot store a result, trying again: %s", self.queue.name, error)
                await asyncio.sleep(pause * (0.5 + self.rng.random() / 2))
                pause = min(MAX_PAUSE, pause * 2)
        self.observer.settled(delivery.claim, verdict, accepted)
        if requeueing is not None:
            requeueing.end()
        if spans is not None:
            spans.settled(verdict)

    async def _settle_once(self, claim: Claim, verdict: Verdict) -> bool:
        if isinstance(verdict, Finish):
            return await self.queue.finish(claim, verdict.result, dead_letter=verdict.dead_letter)
        if isinstance(verdict, Release):
            return await self.queue.release([claim]) == 1
        return await self.queue.retry(claim, verdict.delay_ms, fault=verdict.fault)


def _end(spans: DeliverySpans, delivery: Delivery) -> None:
    if delivery.aborted:
        spans.aborted(delivery.state.value, requeued=delivery.state is not DeliveryState.LOST)
    spans.end()
