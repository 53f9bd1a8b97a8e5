"""Always open. A target that says 429 closes it all the same: the ledger minds that, whoever reads the metrics."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from fractions import Fraction
from typing import Final

from dispatcher.broker.account import ALWAYS_NEWER_MS
from dispatcher.broker.budget import ONE
from dispatcher.broker.ledger import Reading
from dispatcher.broker.wake_up import Changes
from dispatcher.gates.meter import MeterState

UNLIMITED: Final = Reading(headroom=Fraction(2**52), at_ms=ALWAYS_NEWER_MS)
"""More than there ever is, newer than every rejection."""


class ConstantGauge:
    """A gauge that never moves."""

    def __init__(self) -> None:
        self._changes = Changes()
        self.reading_count = 0

    def budget(self) -> Fraction:
        return ONE

    def reading(self) -> Reading:
        return UNLIMITED

    @property
    def states(self) -> Sequence[MeterState]:
        """As `dispatcher.gates.ledger_gate.Gauge`: nothing is read."""
        return ()

    async def wait(self, timeout: float, seen: int) -> None:
        await self._changes.wait(timeout, seen)


@asynccontextmanager
async def constant_gauge() -> AsyncIterator[ConstantGauge]:
    """There is nothing to read."""
    yield ConstantGauge()
