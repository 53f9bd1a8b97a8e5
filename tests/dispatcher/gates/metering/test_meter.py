"""The age of readings, and sources that hang or fail."""

import asyncio
from fractions import Fraction

import pytest

from dispatcher.broker.contract.ledger import LedgerState
from dispatcher.broker.contract.queue import QueueError
from dispatcher.gates.metering.meter import Measurement, Meter, Meters
from dispatcher.gates.parameters import GateSourceError, MetricParameters
from tests.eventually import eventually


class Clocks:
    """The broker's and the process's, moved by hand, in milliseconds."""

    def __init__(self) -> None:
        self.now = 100_000
        self.in_flight = 0

    async def look(self) -> LedgerState:
        return LedgerState(self.now + 5_000_000, self.in_flight)

    def monotonic(self) -> float:
        return self.now / 1000


class Source:
    name = "the source"

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self.age = 0.0
        self.takes_ms = 0
        self.error: Exception | None = None
        self.hangs = asyncio.Event()
        self.hangs.set()

    async def measure(self) -> Measurement:
        await self.hangs.wait()
        self._clocks.now += self.takes_ms
        if self.error is not None:
            raise self.error
        return Measurement(Fraction(1, 2), Fraction(20), Fraction(18), self.age, Fraction(10), Fraction(18))


async def test_a_reading_is_never_later_than_its_sample() -> None:
    clocks = Clocks()
    source = Source(clocks)
    source.age, source.takes_ms = 2.0, 700
    async with Meter(
        source, clocks.look, MetricParameters(lag=1.5, interval=3600), monotonic=clocks.monotonic
    ) as meter:
        await meter.wait(90, 0)
        assert meter.reading().headroom == 10
        assert meter.reading().at_ms == 5_100_000 - 2_000 - 1_500  # what it took is behind it


@pytest.mark.parametrize(("in_flight", "allotment"), [(0, 10), (5, 15), (50, 18)])
async def test_a_reading_allots_what_others_leave_and_never_more_than_the_line(
    in_flight: int, allotment: int
) -> None:
    clocks = Clocks()
    clocks.in_flight = in_flight
    async with Meter(
        Source(clocks), clocks.look, MetricParameters(interval=0.01), monotonic=clocks.monotonic
    ) as meter:
        assert meter.reading().allotment == 0
        for _ in range(3):
            await meter.wait(90, looks := meter.reading_count)
            await meter.wait(90, looks + 1)
            clocks.now += 15
        await meter.wait(90, looks := meter.reading_count)
        await meter.wait(90, looks + 1)
        assert meter.reading().allotment == allotment
        clocks.now += 60_000
        assert meter.reading().allotment == 0, "what is too old allots nothing"


async def test_13_a_reading_that_nobody_renews_grows_too_old() -> None:
    clocks = Clocks()
    source = Source(clocks)
    source.age = 1.0
    rules = MetricParameters(interval=3600, lag=2.0, stale_after=3.0)
    async with Meter(source, clocks.look, rules, monotonic=clocks.monotonic) as meter:
        await meter.wait(90, 0)
        clocks.now += 3 * 3_600_000 + 1_000  # with the second that it was old already: the last moment
        assert meter.budget() == Fraction(1, 2)
        clocks.now += 1
        assert meter.budget() == 0
        assert meter.reading().headroom == 0
        assert meter.state.reason == "the last reading is too old"
        assert not meter.state.available


@pytest.mark.parametrize(
    "error", [GateSourceError("broken"), QueueError("broken"), ZeroDivisionError("broken")]
)
async def test_13_one_failure_closes_it_at_once(error: Exception) -> None:
    clocks = Clocks()
    source = Source(clocks)
    async with Meter(
        source, clocks.look, MetricParameters(interval=0.01), monotonic=clocks.monotonic
    ) as meter:
        await eventually(lambda: meter.state.available)
        source.error = error
        await eventually(lambda: not meter.state.available)
        assert meter.budget() == 0
        source.error = None
        await eventually(lambda: meter.state.available)


async def test_13_a_source_that_hangs_closes_it() -> None:
    clocks = Clocks()
    source = Source(clocks)
    rules = MetricParameters(interval=0.01, timeout=0.05)
    async with Meter(source, clocks.look, rules, monotonic=clocks.monotonic) as meter:
        await eventually(lambda: meter.state.available)
        source.hangs.clear()
        await eventually(lambda: meter.state.reason == "no answer within 0.05 s")
        assert meter.budget() == 0


async def test_the_fallback_is_of_the_last_capacity_known() -> None:
    clocks = Clocks()
    source = Source(clocks)
    rules = MetricParameters(interval=0.01, fallback=Fraction(1, 10), max_concurrency=Fraction(1000))
    source.error = GateSourceError("broken")
    async with Meter(source, clocks.look, rules, monotonic=clocks.monotonic) as meter:
        assert meter.reading().headroom == 100
        source.error = None
        await eventually(lambda: meter.state.available)
        source.error = GateSourceError("broken")
        await eventually(lambda: not meter.state.available)
        assert meter.reading().headroom == 2
        assert meter.reading().at_ms == 0  # all that runs counts


async def test_a_meter_that_was_left_says_nothing() -> None:
    clocks = Clocks()
    async with Meter(Source(clocks), clocks.look, MetricParameters(), monotonic=clocks.monotonic) as meter:
        await meter.wait(90, 0)
        assert meter.budget() > 0
    assert meter.budget() == 0
    assert not meter.state.available


async def test_meters_have_a_session_while_they_are_open() -> None:
    meters = Meters()
    with pytest.raises(RuntimeError, match="use `async with meters`"):
        _ = meters.session
    async with meters:
        assert not meters.session.closed
