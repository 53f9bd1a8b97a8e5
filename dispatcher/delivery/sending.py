"""One claim, from its slot to its end: sent, judged, and answered, parked or released, whatever the broker does."""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from dispatcher.broker.message import Claim, DispatchCandidate, ErrorCode
from dispatcher.broker.queue import Queue, QueueError
from dispatcher.delivery.gateway import Gateway, GatewayAnswer, NoAnswer
from dispatcher.delivery.observer import DispatchObserver
from dispatcher.delivery.outage import Outage
from dispatcher.delivery.outgoing import IllegalRequestError, Route
from dispatcher.delivery.verdict import Final, Release, Verdict, failure, judge, outcome_of
from dispatcher.gates.gate import Outcome, Slot

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
"""Seconds between two tries to tell the broker what it must know."""

log = logging.getLogger(__name__)


class Admission:
    """A gate's slot, held for one candidate; released exactly once."""

    def __init__(
        self, candidate: DispatchCandidate, manager: contextlib.AbstractAsyncContextManager[Slot], slot: Slot
    ) -> None:
        self.candidate = candidate
        self._manager: contextlib.AbstractAsyncContextManager[Slot] | None = manager
        self._slot = slot

    async def release(self, outcome: Outcome, retry_after: float | None = None) -> None:
        """Release the slot and say what the target said; `retry_after` in seconds. The second time: nothing."""
        manager, self._manager = self._manager, None
        if manager is None:
            return
        self._slot.outcome = outcome
        self._slot.retry_after_ms = int((retry_after or 0) * 1000)
        try:
            await manager.__aexit__(None, None, None)
        except QueueError as error:
            log.debug("a gate could not take its slot back, its lease will: %s", error)


class FlightState(Enum):
    """Where a claim is on its way from the queue to its end."""

    CLAIMED = "claimed"
    SENDING = "sending"
    SETTLING = "settling"
    """Its verdict is known and must reach the broker: nothing aborts it any more."""
    ABORTED_UNSENT = "aborted before it was sent"
    ABORTED_SENT = "aborted while it was sent"
    LOST = "lost"
    """It was cancelled, or another dispatcher holds it: nothing of it is told to the broker."""


_MAY_BECOME: Mapping[FlightState, frozenset[FlightState]] = {
    FlightState.CLAIMED: frozenset(FlightState) - {FlightState.CLAIMED, FlightState.ABORTED_SENT},
    FlightState.SENDING: frozenset({FlightState.SETTLING, FlightState.ABORTED_SENT, FlightState.LOST}),
    FlightState.SETTLING: frozenset(),
    FlightState.ABORTED_UNSENT: frozenset({FlightState.LOST}),
    FlightState.ABORTED_SENT: frozenset({FlightState.LOST}),
    FlightState.LOST: frozenset(),
}


@dataclass(slots=True)
class Flight:
    """A claim on its way; what is no arrow changes nothing.

        CLAIMED ──send──► SENDING ──settle──► SETTLING ──► the broker knows its end
         │ │                 │                  ▲
         │ └─────────────────┼──────settle──────┘
       abort               abort
         ▼                   ▼
        ABORTED_UNSENT    ABORTED_SENT ──► released to its queue

        lose: from every state but SETTLING to LOST ──► nothing is told

    `until`: its lease ends no sooner, in seconds of this process's monotonic clock, which never goes back.
    """

    claim: Claim
    admission: Admission
    until: float
    state: FlightState = FlightState.CLAIMED
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def aborted(self) -> bool:
        """Nothing more is sent, and no verdict is waited for."""
        return self.state in (FlightState.ABORTED_UNSENT, FlightState.ABORTED_SENT, FlightState.LOST)

    def send(self) -> None:
        """Its request goes out now."""
        self._become(FlightState.SENDING)

    def settle(self) -> None:
        """Its verdict is known, unless it was aborted before."""
        self._become(FlightState.SETTLING)

    def abort(self) -> None:
        """Close its connection, unless the answer is in already."""
        sending = self.state is FlightState.SENDING
        self._abort(FlightState.ABORTED_SENT if sending else FlightState.ABORTED_UNSENT)

    def lose(self) -> None:
        """It was cancelled, or another dispatcher holds it: stop sending, say nothing."""
        self._abort(FlightState.LOST)

    def _abort(self, state: FlightState) -> None:
        sending = self.state is FlightState.SENDING
        # A task that has not begun would never run its clean-up if it were cancelled: it looks at `aborted` instead.
        if self._become(state) and sending and self.task is not None:
            self.task.cancel()

    def _become(self, state: FlightState) -> bool:
        """The one place where the state changes; False where there is no such arrow."""
        if state not in _MAY_BECOME[self.state]:
            return False
        self.state = state
        return True


@dataclass(frozen=True, slots=True)
class Sender:
    """Everything that the flights of one queue need. `request_timeout` in seconds, for one attempt."""

    queue: Queue
    gateway: Gateway
    route: Route
    request_timeout: float
    now_ms: Callable[[], int]
    observer: DispatchObserver
    outage: Outage
    rng: random.Random

    async def deliver(self, flight: Flight) -> None:
        """Returns when the broker knows the end of it, or when it is not ours any more."""
        try:
            verdict = None if flight.aborted else await self._attempt(flight)
            flight.settle()
        finally:
            await flight.admission.release(Outcome.UNUSED)
        if verdict is not None and flight.state is FlightState.SETTLING:
            await self._settle(flight, verdict)

    async def _attempt(self, flight: Flight) -> Verdict:
        claim, now_ms = flight.claim, self.now_ms()
        if flight.until <= time.monotonic():  # this process stood still meanwhile: another may have it
            return Release()
        remaining = (claim.request.deadline_ms - now_ms) / 1000
        if remaining <= 0:
            late = "the deadline passed before it could be sent"
            return failure(claim, ErrorCode.DEADLINE_EXCEEDED, late, now_ms, attempts=claim.attempt)
        timeout = min(self.request_timeout, remaining)
        try:
            path = self.route.target_path(claim.request.path)
            headers = self.route.sent_headers(claim.request, claim.attempt, max(1, int(timeout * 1000)))
        except IllegalRequestError as error:
            return failure(claim, ErrorCode.INVALID_REQUEST, str(error), now_ms, attempts=claim.attempt)
        flight.send()
        self.observer.sent(claim)
        begun = time.perf_counter()
        answer = await self.gateway.post(path, headers, claim.request.payload, timeout)
        flight.settle()
        self._reached(answer)
        self.observer.answered(claim, answer, time.perf_counter() - begun)
        await flight.admission.release(outcome_of(answer), _retry_after(answer))
        return judge(claim, answer, self.now_ms(), self.rng)

    def _reached(self, answer: GatewayAnswer | NoAnswer) -> None:
        if isinstance(answer, GatewayAnswer):
            self.outage.answered()
        elif not answer.reached:
            self.outage.unreached(answer.reason)

    async def _settle(self, flight: Flight, verdict: Verdict) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                ours = await self._tell(flight.claim, verdict)
                break
            except QueueError as error:
                log.debug("%s: an end is held back until the broker answers: %s", self.queue.name, error)
                await asyncio.sleep(pause * (0.5 + self.rng.random() / 2))
                pause = min(LONGEST_PAUSE, pause * 2)
        self.observer.settled(flight.claim, verdict, ours)

    async def _tell(self, claim: Claim, verdict: Verdict) -> bool:
        if isinstance(verdict, Final):
            return await self.queue.finish(claim, verdict.result)
        if isinstance(verdict, Release):
            return await self.queue.release([claim]) == 1
        return await self.queue.retry(claim, verdict.delay_ms)


def _retry_after(answer: GatewayAnswer | NoAnswer) -> float | None:
    return answer.retry_after if isinstance(answer, GatewayAnswer) else None
