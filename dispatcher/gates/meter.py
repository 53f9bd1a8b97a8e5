"""Reads the state of a target, again and again, and holds the last reading for all gates that want it."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fractions import Fraction
from types import TracebackType
from typing import Protocol, Self

import aiohttp

from dispatcher.broker.allotment import AllotmentEstimator
from dispatcher.broker.budget import ZERO
from dispatcher.broker.ledger import LedgerState, Reading
from dispatcher.broker.queue import QueueError
from dispatcher.broker.wake_up import Changes
from dispatcher.gates.access import GateSourceError
from runtime.tasks import BackgroundTasks

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a source found: `spare` = max(0, D - B), `capacity` = max_SYS, `age` of the oldest sample in seconds.

    `line`: the load at which D = B, in units of capacity. `value` is the number that was read, `threshold` the one at
    which the gate closes, for people.
    """

    spare: Fraction
    capacity: Fraction
    line: Fraction
    age: float
    value: Fraction
    threshold: Fraction


class MeterSource(Protocol):
    """Where the state of a target can be read."""

    @property
    def name(self) -> str:
        """For metrics and logs."""

    async def measure(self) -> Measurement:
        """Look once; raises SourceError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterRules:
    """Times in seconds.

    `lag`: how long the target's state takes to show in a sample, beyond the sample's own age. A reading older than
    `lag` + `stale_after` x `interval` is none. `timeout` is for one look. `fallback`: spare budget where nothing can be
    read, of `fallback_capacity`, or of the last capacity known; None: closed.
    """

    interval: float = 5.0
    lag: float = 0.0
    stale_after: float = 3.0
    timeout: float = 10.0
    fallback: Fraction | None = None
    fallback_capacity: Fraction = ZERO


@dataclass(frozen=True, slots=True)
class MeterState:
    """For metrics: the last number read, where the gate closes, whether there is a reading that counts; if not, why."""

    name: str
    value: float | None
    threshold: float | None
    available: bool
    reason: str


@dataclass(frozen=True, slots=True)
class _Held:
    measurement: Measurement
    reading: Reading
    sampled_at: float
    """Of the process's own monotonic clock, in seconds."""


class Meter:
    """An async context manager: entered, the source is being read. `look` is the ledger's."""

    def __init__(
        self,
        source: MeterSource,
        look: Callable[[], Awaitable[LedgerState]],
        rules: MeterRules,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._ask_ledger = look
        self._rules = rules
        self._monotonic = monotonic
        self._allotment = AllotmentEstimator(round(rules.lag * 1000), round(rules.interval * 1000))
        self._held: _Held | None = None
        self._capacity: Fraction | None = None
        self._why = "not read yet"
        self._tasks = BackgroundTasks()
        self.changes = Changes()

    async def __aenter__(self) -> Self:
        self._tasks.start(self._run(), f"meter of {self._source.name}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._tasks.aclose()
        self._held, self._why = None, "not read any more"

    def budget(self) -> Fraction:
        """max(0, D - B) as of the last reading that counts, else the fallback, else 0."""
        held = self._fresh()
        return held.measurement.spare if held is not None else self._rules.fallback or ZERO

    def reading(self) -> Reading:
        """The last reading that counts. Else the fallback, or no headroom, as of a time when nothing had gone yet."""
        held = self._fresh()
        if held is not None:
            return held.reading
        capacity = self._capacity if self._capacity is not None else self._rules.fallback_capacity
        return Reading(capacity * (self._rules.fallback or ZERO), at_ms=0)

    @property
    def looks(self) -> int:
        """How often the source was looked at."""
        return self.changes.count

    @property
    def states(self) -> Sequence[MeterState]:
        """What is known now, in a list of one."""
        return (self.state,)

    @property
    def state(self) -> MeterState:
        """What is known now."""
        held = self._fresh()
        value = threshold = None
        if self._held is not None:
            value = float(self._held.measurement.value)
            threshold = float(self._held.measurement.threshold)
        why = "" if held is not None else self._why or "the last reading is too old"
        return MeterState(self._source.name, value, threshold, held is not None, why)

    async def wait(self, timeout: float, seen: int) -> None:
        """Until the source was looked at since `looks` was `seen`, at most `timeout` seconds."""
        await self.changes.wait(timeout, seen)

    def _fresh(self) -> _Held | None:
        held, rules = self._held, self._rules
        if held is None or self._why:
            return None
        age = self._monotonic() - held.sampled_at
        return held if age <= rules.lag + rules.stale_after * rules.interval else None

    async def _run(self) -> None:
        while True:
            started = self._monotonic()
            try:
                self._held = await self._look()
            except (GateSourceError, QueueError) as error:
                self._failed(str(error))
            except Exception as error:
                logger.exception("reading %s: a fault", self._source.name)
                self._failed(f"a fault, see the log: {type(error).__name__}")
            else:
                if self._why:
                    logger.info("%s can be read", self._source.name)
                self._why, self._capacity = "", self._held.measurement.capacity
            self.changes.tell()
            await asyncio.sleep(max(0.0, self._rules.interval - (self._monotonic() - started)))

    async def _look(self) -> _Held:
        # both clocks before the source is asked: the sample must not be older than the reading says
        started = self._monotonic()
        ledger = await self._ask_ledger()
        try:
            async with asyncio.timeout(self._rules.timeout):
                found = await self._source.measure()
        except TimeoutError as error:
            raise GateSourceError(f"no answer within {self._rules.timeout:g} s") from error
        headroom, age_ms = found.capacity * found.spare, round(found.age * 1000)
        left = self._allotment.update(round(started * 1000), headroom, ledger.in_flight, age_ms=age_ms)
        at_ms = ledger.now_ms - age_ms - round(self._rules.lag * 1000)
        # more than all of the room is never ours, however late what we sent shows
        reading = Reading(headroom, max(0, at_ms), min(left, found.line))
        return _Held(found, reading, started - found.age)

    def _failed(self, why: str) -> None:
        if not self._why or self._why == "not read yet":
            closed = "" if self._rules.fallback else "; nothing is sent until it can be read"
            logger.warning("%s cannot be read%s: %s", self._source.name, closed, why)
        self._why = why


class Meters:
    """The meters of one process: gates that read the same thing share one. An async context manager."""

    def __init__(self) -> None:
        self._shared: dict[object, _Shared] = {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.session.close()
        self._session = None

    @property
    def session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("use `async with meters`: there is no session before that")
        return self._session

    @asynccontextmanager
    async def shared(self, key: object, make: Callable[[], Meter]) -> AsyncIterator[Meter]:
        """The running meter under that key, made where there is none; it ends with its last user."""
        shared = self._shared.get(key)
        if shared is None:
            shared = self._shared[key] = _Shared(make())
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
class _Shared:
    meter: Meter
    users: int = 0
