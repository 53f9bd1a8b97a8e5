"""The gate over a target's ledger: admits while the metered headroom exceeds what was sent since the reading.

After an overload of the target the ledger refuses until a newer reading, then admits one probe and ramps up.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from fractions import Fraction
from typing import Final, Protocol

from adsum.tasks import first_of
from dispatcher.broker.capacity.account import ALWAYS_NEWER_MS, LONGEST_RETRY_AFTER_MS
from dispatcher.broker.capacity.budget import ONE
from dispatcher.broker.contract.ledger import Changes, Ledger, Reading, Refusal, Reservation
from dispatcher.broker.contract.message import DispatchCandidate
from dispatcher.broker.contract.queue import QueueError
from dispatcher.gates.admission import RECHECK_INTERVAL, ReservingGate
from dispatcher.gates.gate import Outcome, RefusedError, Scope, Slot
from dispatcher.gates.metering.meter import MeterState

PROBE_DELAY_MS: Final = 1000
"""Milliseconds until a target that answered 429 is probed if no meter tells when it has room again."""


class Gauge(Protocol):
    """The input of a ledger gate: a `Meter`, several of them, or none."""

    @property
    def reading_count(self) -> int:
        """Counts readings; for `wait`."""

    def budget(self) -> Fraction:
        """max(0, D - B)."""

    def reading(self) -> Reading:
        """The reading that the ledger compares with what was sent."""

    @property
    def states(self) -> Sequence[MeterState]:
        """The meters, for metrics and for reasons of refusals; empty without one."""

    async def wait(self, timeout: float, seen: int) -> None:
        """Wait until `reading_count` is no longer `seen`, at most `timeout` seconds."""


def count_requests(candidate: DispatchCandidate) -> int:
    """Counts requests, or the units that the queue assigns to each."""
    return max(1, candidate.units)


def count_bytes(candidate: DispatchCandidate) -> int:
    """Counts bytes of payload."""
    return max(1, candidate.size)


class LedgerGate(ReservingGate[Reservation]):
    """Reserves the candidate's units in the ledger, under the gauge's reading."""

    def __init__(
        self,
        gauge: Callable[[], AbstractAsyncContextManager[Gauge]],
        ledger: Ledger,
        units: Callable[[DispatchCandidate], int] = count_requests,
    ) -> None:
        super().__init__()
        self._open_gauge = gauge
        self._ledger = ledger
        self._units = units
        self._gauge: Gauge | None = None

    async def _open(self) -> None:
        self._stack.callback(self._forget_gauge)
        self._gauge = await self._stack.enter_async_context(self._open_gauge())
        await self.keep_leases(self._ledger.heartbeat, self._ledger.lease_ms)

    def _forget_gauge(self) -> None:
        self._gauge = None

    @property
    def gauge(self) -> Gauge:
        """Raises RuntimeError before the gate is entered."""
        if self._gauge is None:
            raise RuntimeError("use `async with gate`: nothing is read before that")
        return self._gauge

    def budget(self) -> float:
        return float(self.gauge.budget()) if self._gauge is not None else 0.0

    async def reserve(self, candidate: DispatchCandidate) -> Reservation:
        gauge = self.gauge
        reading, seen = gauge.reading(), gauge.reading_count
        if reading.headroom <= 0:
            # Only another reading can open it, so a release in the ledger is no reason to ask again.
            raise RefusedError(self._closed_reason(), Scope.QUEUE, lambda: gauge.wait(60.0, seen))
        answer = await self._ledger.reserve(reading, self._units(candidate))
        if isinstance(answer, Refusal):
            raise RefusedError(_reason(answer), Scope.QUEUE, lambda: self._until_changed(answer, seen))
        return answer

    def _closed_reason(self) -> str:
        states = self.gauge.states
        for state in states:
            if not state.available:
                return f"{state.name} cannot be read: {state.reason}"
        return f"the budget of {' and '.join(state.name for state in states)} is 0"

    async def _until_changed(self, refusal: Refusal, seen: int) -> None:
        if refusal.until_ms is not None:  # closed by a 429 until then, whatever is read or released
            with suppress(QueueError):
                await asyncio.sleep(max(0.0, (refusal.until_ms - await self._ledger.now_ms()) / 1000))
            return
        await first_of(
            self.gauge.wait(RECHECK_INTERVAL, seen), self._ledger.wait(RECHECK_INTERVAL, seen=refusal.seen)
        )

    async def give_back(self, held: Reservation, slot: Slot) -> None:
        """Report the outcome and release the units."""
        try:
            if slot.outcome is Outcome.OVERLOADED:
                least = 0 if self.gauge.states else PROBE_DELAY_MS
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


class CombinedGauge:
    """The least headroom and the oldest time: never more than each gauge allows."""

    def __init__(self, gauges: Sequence[Gauge]) -> None:
        self._gauges = gauges

    @property
    def reading_count(self) -> int:
        return sum(gauge.reading_count for gauge in self._gauges)

    def budget(self) -> Fraction:
        return min(gauge.budget() for gauge in self._gauges)

    def reading(self) -> Reading:
        readings = [gauge.reading() for gauge in self._gauges]
        return Reading(
            min(one.headroom for one in readings),
            min(one.at_ms for one in readings),
            min(one.allotment for one in readings),
        )

    @property
    def states(self) -> Sequence[MeterState]:
        return [state for gauge in self._gauges for state in gauge.states]

    async def wait(self, timeout: float, seen: int) -> None:
        if self.reading_count != seen:
            return
        await first_of(*(gauge.wait(timeout, gauge.reading_count) for gauge in self._gauges))


@asynccontextmanager
async def combined_gauge(
    gauges: Sequence[Callable[[], AbstractAsyncContextManager[Gauge]]],
) -> AsyncIterator[CombinedGauge]:
    """Opens the gauges, and closes them at the end of the block."""
    async with AsyncExitStack() as stack:
        yield CombinedGauge([await stack.enter_async_context(gauge()) for gauge in gauges])


UNLIMITED: Final = Reading(headroom=Fraction(2**52), at_ms=ALWAYS_NEWER_MS)
"""More headroom than there are requests, newer than every rejection."""


class ConstantGauge:
    """A gauge without a source."""

    def __init__(self) -> None:
        self._changes = Changes()
        self.reading_count = 0

    def budget(self) -> Fraction:
        return ONE

    def reading(self) -> Reading:
        return UNLIMITED

    @property
    def states(self) -> Sequence[MeterState]:
        return ()

    async def wait(self, timeout: float, seen: int) -> None:
        await self._changes.wait(timeout, seen)


@asynccontextmanager
async def constant_gauge() -> AsyncIterator[ConstantGauge]:
    yield ConstantGauge()
