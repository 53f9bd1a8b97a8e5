"""Polls the load of a target and keeps the last valid reading for all gates that share it.

A reading that fails, is too old or makes no sense is a budget of 0: a dispatcher that cannot see the load must not add to it.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol, Self

import aiohttp

from adsum.tasks import BackgroundTasks
from dispatcher.broker.capacity.allotment import AllotmentEstimator
from dispatcher.broker.capacity.budget import ZERO
from dispatcher.broker.contract.ledger import Changes, LedgerState, Reading
from dispatcher.broker.contract.queue import QueueError
from dispatcher.gates.parameters import GateSourceError, MetricParameters

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measurement of a source. `spare` = max(0, D - B), `capacity` = max_SYS, `age` of the oldest sample in seconds.

    `closing_load`: the load at which D = B, in units of capacity. For people: `value` is the number that was read,
    `threshold` the number at which the gate closes.
    """

    spare: Fraction
    capacity: Fraction
    closing_load: Fraction
    age: float
    value: Fraction
    threshold: Fraction


class MeterSource(Protocol):
    """Measures the load of a target."""

    @property
    def name(self) -> str:
        """For metrics and logs."""

    async def measure(self) -> Measurement:
        """Measure once; raises GateSourceError."""


@dataclass(frozen=True, slots=True)
class MeterState:
    """For metrics. `value`: the last number read; `reason`: why there is no valid reading, empty if there is one."""

    name: str
    value: float | None
    threshold: float | None
    available: bool
    reason: str


@dataclass(frozen=True, slots=True)
class _LastReading:
    measurement: Measurement
    reading: Reading
    sampled_at: float
    """On the monotonic clock, in seconds."""


class Meter:
    """An async context manager: entered, it polls. `ledger_state`: the state of the target's ledger.

    A reading older than `lag` + `stale_after` x `interval` is invalid. Without a valid one the spare budget is `fallback`, as a
    share of the last known capacity or else of `fallback_capacity`; None: closed.
    """

    def __init__(
        self,
        source: MeterSource,
        ledger_state: Callable[[], Awaitable[LedgerState]],
        settings: MetricParameters,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._ledger_state = ledger_state
        self._settings = settings
        self._monotonic = monotonic
        self._allotment = AllotmentEstimator(round(settings.lag * 1000), round(settings.interval * 1000))
        self._last: _LastReading | None = None
        self._capacity: Fraction | None = None
        self._error = "not read yet"
        self._tasks = BackgroundTasks()
        self.changes = Changes()

    async def __aenter__(self) -> Self:
        self._tasks.start(self._run(), f"meter of {self._source.name}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.aclose()
        self._last, self._error = None, "not read any more"

    def budget(self) -> Fraction:
        """max(0, D - B) of the last valid reading, else the fallback, else 0."""
        last = self._fresh_reading()
        return last.measurement.spare if last is not None else self._settings.fallback or ZERO

    def reading(self) -> Reading:
        """The last valid reading, else the fallback or no headroom.

        The fallback has time 0, so that the ledger counts everything in flight against it.
        """
        last = self._fresh_reading()
        if last is not None:
            return last.reading
        capacity = self._capacity if self._capacity is not None else self._settings.fallback_capacity
        return Reading(capacity * (self._settings.fallback or ZERO), at_ms=0)

    @property
    def reading_count(self) -> int:
        """Measurements so far, failed ones too."""
        return self.changes.count

    @property
    def state(self) -> MeterState:
        """The last reading, and why it is not believed if it is too old or failed; for status pages and the log."""
        last = self._fresh_reading()
        value = threshold = None
        if self._last is not None:
            value = float(self._last.measurement.value)
            threshold = float(self._last.measurement.threshold)
        reason = "" if last is not None else self._error or "the last reading is too old"
        return MeterState(self._source.name, value, threshold, last is not None, reason)

    async def wait(self, timeout: float, seen: int) -> None:
        await self.changes.wait(timeout, seen)

    def _fresh_reading(self) -> _LastReading | None:
        last, settings = self._last, self._settings
        if last is None or self._error:
            return None
        # Monotonic: a step of the system clock must not make an old reading valid.
        age = self._monotonic() - last.sampled_at
        return last if age <= settings.lag + settings.stale_after * settings.interval else None

    async def _run(self) -> None:
        while True:
            started = self._monotonic()
            try:
                self._last = await self._read_source()
            except (GateSourceError, QueueError) as error:
                self._record_failure(str(error))
            except Exception as error:
                log.exception("unexpected error while reading %s", self._source.name)
                self._record_failure(f"unexpected error, see the log: {type(error).__name__}")
            else:
                if self._error:
                    log.info("%s can be read", self._source.name)
                self._error, self._capacity = "", self._last.measurement.capacity
            self.changes.tell()
            await asyncio.sleep(max(0.0, self._settings.interval - (self._monotonic() - started)))

    async def _read_source(self) -> _LastReading:
        # Both clocks are read before the source. A reading that claims to be newer than its sample would hide requests that
        # were sent in between, and their room would be given twice.
        started = self._monotonic()
        ledger = await self._ledger_state()
        try:
            async with asyncio.timeout(self._settings.timeout):
                found = await self._source.measure()
        except TimeoutError as error:
            raise GateSourceError(f"no answer within {self._settings.timeout:g} s") from error
        headroom, age_ms = found.capacity * found.spare, round(found.age * 1000)
        left = self._allotment.update(round(started * 1000), headroom, ledger.in_flight, age_ms=age_ms)
        # Requests of the last `lag` may not show in the sample yet. An earlier time makes the ledger count them as unseen: some
        # count twice, none is missed.
        at_ms = ledger.now_ms - age_ms - round(self._settings.lag * 1000)
        # The estimate can exceed the line while what we sent does not show yet: all of the line is the most that is ours.
        reading = Reading(headroom, max(0, at_ms), min(left, found.closing_load))
        return _LastReading(found, reading, started - found.age)

    def _record_failure(self, reason: str) -> None:
        if not self._error or self._error == "not read yet":
            closed = "" if self._settings.fallback else "; nothing is sent until it can be read"
            log.warning("%s cannot be read%s: %s", self._source.name, closed, reason)
        self._error = reason


class Meters:
    """The meters of one process and their HTTP session; gates with the same source share a meter."""

    def __init__(self) -> None:
        self._shared: dict[object, _SharedMeter] = {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()
        self._session = None

    @property
    def session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("use `async with meters`: there is no session before that")
        return self._session

    @asynccontextmanager
    async def shared(self, key: object, make: Callable[[], Meter]) -> AsyncIterator[Meter]:
        """The running meter of `key`; the first user starts it, the last one ends it."""
        shared = self._shared.get(key)
        if shared is None:
            shared = self._shared[key] = _SharedMeter(make())
            await shared.meter.__aenter__()
        shared.users += 1
        try:
            yield shared.meter
        finally:
            shared.users -= 1
            if not shared.users:
                del self._shared[key]
                await shared.meter.__aexit__(None, None, None)


@dataclass(slots=True)
class _SharedMeter:
    meter: Meter
    users: int = 0
