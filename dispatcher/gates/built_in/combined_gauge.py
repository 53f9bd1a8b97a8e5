"""Combines several gauges of one target, so that one reservation in the ledger satisfies all of them."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from fractions import Fraction

from adsum.tasks import first_of
from dispatcher.broker.contract.ledger import Reading
from dispatcher.gates.built_in.ledger_gate import Gauge
from dispatcher.gates.metering.meter import MeterState


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
    """Opens the gauges."""
    async with AsyncExitStack() as stack:
        yield CombinedGauge([await stack.enter_async_context(gauge()) for gauge in gauges])
