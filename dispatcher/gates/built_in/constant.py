"""A gauge that is always open. A 429 of the target closes its gate all the same: the ledger counts rejections."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from fractions import Fraction
from typing import Final

from dispatcher.broker.capacity.account import ALWAYS_NEWER_MS
from dispatcher.broker.capacity.budget import ONE
from dispatcher.broker.contract.ledger import Reading
from dispatcher.broker.contract.wake_up import Changes
from dispatcher.gates.metering.meter import MeterState

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
