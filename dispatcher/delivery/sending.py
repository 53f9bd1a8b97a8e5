"""One claim, from its slot to its end: sent, judged, and answered, parked or handed back, whatever the broker does."""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from dispatcher.broker.message import Claim, DispatchCandidate, ErrorCode
from dispatcher.broker.queue import Queue, QueueError
from dispatcher.delivery.gateway import Gateway, GatewayAnswer, NoAnswer
from dispatcher.delivery.outage import Outage
from dispatcher.delivery.outgoing import IllegalRequestError, Route
from dispatcher.delivery.verdict import Final, Release, Verdict, failure, judge, outcome_of
from dispatcher.gates.gate import Outcome, Slot
from dispatcher.telemetry.observer import DispatchObserver

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
"""Seconds between two tries to tell the broker what it must know."""

log = logging.getLogger(__name__)


class Admission:
    """A gate's slot, held for one candidate; left exactly once."""

    def __init__(
        self, candidate: DispatchCandidate, manager: contextlib.AbstractAsyncContextManager[Slot], slot: Slot
    ) -> None:
        self.candidate = candidate
        self._manager: contextlib.AbstractAsyncContextManager[Slot] | None = manager
        self._slot = slot

    async def leave(self, outcome: Outcome, retry_after: float | None = None) -> None:
        """Give the slot back and say what the target said; `retry_after` in seconds. The second time: nothing."""
        manager, self._manager = self._manager, None
        if manager is None:
            return
        self._slot.outcome = outcome
        self._slot.retry_after_ms = int((retry_after or 0) * 1000)
        try:
            await manager.__aexit__(None, None, None)
        except QueueError as error:
            log.debug("a gate could not take its slot back, its lease will: %s", error)


@dataclass(slots=True)
class Flight:
    """A claim on its way.

    `until`: its lease ends no sooner, in seconds of this process's monotonic clock, which never goes back. `settling`: its
    verdict is known and must reach the broker; it is not stopped any more.
    """

    claim: Claim
    admission: Admission
    until: float
    sent: bool = False
    settling: bool = False
    lost: bool = False
    begun: bool = False
    stopped: bool = False
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    def lose(self) -> None:
        """It was cancelled, or somebody else has it: stop sending, say nothing."""
        self.lost = True
        self.stop()

    def stop(self) -> None:
        """Close its connection, unless the answer is in already."""
        if self.settling or self.stopped:
            return
        self.stopped = True
        if self.begun and self.task is not None:  # a task that has not begun would never run its clean-up
            self.task.cancel()


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
        flight.begun = True
        try:
            verdict = None if flight.stopped else await self._attempt(flight)
            flight.settling = not flight.stopped
        finally:
            await flight.admission.leave(Outcome.UNUSED)
        if verdict is not None and not flight.stopped:
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
        flight.sent = True
        self.observer.sent(claim)
        begun = time.perf_counter()
        answer = await self.gateway.post(path, headers, claim.request.payload, timeout)
        flight.settling = True
        self._reached(answer)
        self.observer.answered(claim, answer, time.perf_counter() - begun)
        await flight.admission.leave(outcome_of(answer), _retry_after(answer))
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
