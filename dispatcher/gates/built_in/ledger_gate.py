"""The gate over a target's ledger: admits while the metered headroom exceeds what was sent since the reading.

After an overload of the target the ledger refuses until a newer reading, then admits one probe and ramps up.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from datetime import UTC, datetime
from fractions import Fraction
from functools import reduce
from typing import Final, TypeAlias

from adsum.tasks import first_of
from dispatcher.broker.capacity.budget import ONE
from dispatcher.broker.capacity.target_ledger import ALWAYS_NEWER_MS, LONGEST_RETRY_AFTER_MS
from dispatcher.broker.contract.ledger import Ledger, Reading, Refusal, Reservation
from dispatcher.broker.contract.message import DispatchCandidate
from dispatcher.broker.contract.queue import QueueError
from dispatcher.gates.admission import RECHECK_INTERVAL, ReservingGate
from dispatcher.gates.gate import Outcome, RefusedError, Scope, Slot
from dispatcher.gates.metering.meter import Meter

PROBE_DELAY_MS: Final = 1000
"""Milliseconds until a target that answered 429 is probed if no meter tells when it has room again."""


UNLIMITED: Final = Reading(headroom=Fraction(2**52), at_ms=ALWAYS_NEWER_MS)
"""More headroom than there are requests, newer than every rejection."""


def count_requests(candidate: DispatchCandidate) -> int:
    """Counts requests, or the units that the queue assigns to each."""
    return max(1, candidate.units)


def count_bytes(candidate: DispatchCandidate) -> int:
    """Counts bytes of payload."""
    return max(1, candidate.size)


_Seen: TypeAlias = Sequence[tuple[Meter, int]]
"""Meters, and how many readings each had."""


class LedgerGate(ReservingGate[Reservation]):
    """Reserves the candidate's units in the ledger, under the least reading of the meters. Without one it closes for a 429 only."""

    def __init__(
        self,
        meters: Sequence[Callable[[], AbstractAsyncContextManager[Meter]]],
        ledger: Ledger,
        units: Callable[[DispatchCandidate], int] = count_requests,
    ) -> None:
        super().__init__()
        self._open_meters = meters
        self._ledger = ledger
        self._units = units
        self._meters: Sequence[Meter] | None = None

    async def _open(self) -> None:
        self._stack.callback(self._forget_meters)
        self._meters = [await self._stack.enter_async_context(opened()) for opened in self._open_meters]
        await self.keep_leases(self._ledger.heartbeat, self._ledger.lease_ms)

    def _forget_meters(self) -> None:
        self._meters = None

    @property
    def meters(self) -> Sequence[Meter]:
        """Raises RuntimeError before the gate is entered."""
        if self._meters is None:
            raise RuntimeError("use `async with gate`: nothing is read before that")
        return self._meters

    def budget(self) -> float:
        if self._meters is None:
            return 0.0
        return float(min((meter.budget() for meter in self._meters), default=ONE))

    async def reserve(self, candidate: DispatchCandidate) -> Reservation:
        meters = self.meters
        reading = reduce(_least, [meter.reading() for meter in meters]) if meters else UNLIMITED
        seen = [(meter, meter.reading_count) for meter in meters]
        if reading.headroom <= 0:
            # Only another reading can open it, so a release in the ledger is no reason to ask again.
            raise RefusedError(
                self._closed_reason(), Scope.QUEUE, lambda: first_of(*_next_readings(seen, 60.0))
            )
        answer = await self._ledger.reserve(reading, self._units(candidate))
        if isinstance(answer, Refusal):
            raise RefusedError(_reason(answer), Scope.QUEUE, lambda: self._until_changed(answer, seen))
        return answer

    def _closed_reason(self) -> str:
        states = [meter.state for meter in self.meters]
        for state in states:
            if not state.available:
                return f"{state.name} cannot be read: {state.reason}"
        return f"the budget of {' and '.join(state.name for state in states)} is 0"

    async def _until_changed(self, refusal: Refusal, seen: _Seen) -> None:
        if refusal.until_ms is not None:  # closed by a 429 until then, whatever is read or released
            with suppress(QueueError):
                await asyncio.sleep(max(0.0, (refusal.until_ms - await self._ledger.now_ms()) / 1000))
            return
        await first_of(
            *_next_readings(seen, RECHECK_INTERVAL), self._ledger.wait(RECHECK_INTERVAL, seen=refusal.seen)
        )

    async def give_back(self, held: Reservation, slot: Slot) -> None:
        """Report the outcome and release the units."""
        try:
            if slot.outcome is Outcome.OVERLOADED:
                least = 0 if self.meters else PROBE_DELAY_MS
                await self._ledger.report_overload(
                    min(max(least, slot.retry_after_ms), LONGEST_RETRY_AFTER_MS)
                )
        finally:  # the target is closed first: a release before that would admit another request
            await self._ledger.release(held, accepted=slot.outcome is Outcome.ACCEPTED)


def _reason(refusal: Refusal) -> str:
    if refusal.until_ms is None:
        return refusal.reason
    until = datetime.fromtimestamp(refusal.until_ms / 1000, UTC)
    return f"{refusal.reason}, until {until:%H:%M:%S} UTC"


def _least(one: Reading, other: Reading) -> Reading:
    """The least headroom and the oldest time: never more than each meter allows."""
    return Reading(
        min(one.headroom, other.headroom), min(one.at_ms, other.at_ms), min(one.allotment, other.allotment)
    )


def _next_readings(seen: _Seen, timeout: float) -> list[Awaitable[None]]:
    return [meter.wait(timeout, count) for meter, count in seen]
