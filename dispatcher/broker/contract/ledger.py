"""The interface of a ledger: what all queues and replicas have sent to one target and no reading can show yet.

A reading is the target's free capacity at one instant. Several dispatchers that each trust it would all send the same N
requests. So every send is counted in one ledger per target, in the broker, and a reading is used minus what was sent
since it was taken.

`dispatcher.broker.memory` and `dispatcher.broker.redis` implement it over the arithmetic of
`dispatcher.broker.capacity.budget` (`target_ledger` decides what a 429 closes); one contract suite runs over both.
"""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class Reading:
    """The state of a target at one instant.

    `headroom`: N, in units of capacity, at that instant; 0 if the metric could not be read. `at_ms`: the instant on the
    broker's clock. It may be too early, never too late: too early counts some requests twice, too late would forget
    them. `allotment`: how much of the target other clients leave to us in all (`dispatcher.broker.capacity.allotment`); 0 if
    unknown.
    """

    headroom: Fraction
    at_ms: int
    allotment: Fraction = Fraction(0)


class LedgerState(NamedTuple):
    """The broker's time, and the units that all dispatchers have in flight."""

    now_ms: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request may not go now.

    `until_ms`: the broker's time before which asking again is useless; None: wait for a newer reading. `seen`: pass it
    to `Ledger.wait`, which then returns for every change since the refusal, also for one before the call.
    """

    reason: str
    until_ms: int | None = None
    seen: int = -1


@dataclass(frozen=True, slots=True)
class Reservation:
    """Units counted for one dispatch until released or its lease ends. `probe`: the single request after a 429."""

    id: str
    units: int
    probe: bool = False


class Ledger(Protocol):
    """One target's ledger. Methods raise `dispatcher.broker.contract.queue.QueueError` if the broker is away.

    Callers send nothing then: an uncounted request would be sent on top of everybody else's.
    """

    @property
    def lease_ms(self) -> int:
        """How long a reservation lives without a heartbeat. Send three heartbeats per lease: two may be lost."""

    async def now_ms(self) -> int:
        """The broker's clock, Unix milliseconds."""

    async def state(self) -> LedgerState:
        """Read just before the target's metric, so that the reading is never dated too late."""

    async def reserve(self, reading: Reading, units: int) -> Reservation | Refusal:
        """Count `units` if either rule has room for them:

        - `reading.headroom` minus what began since `reading.at_ms` and still runs;
        - `reading.allotment` minus everything in flight.

        If nothing is in flight and headroom > 0, one request passes however large it is. After `report_overload` all
        are refused but one probe, then a growing number.
        """

    async def heartbeat(self, reservations: list[Reservation]) -> None:
        """Extend the leases. A reservation without a heartbeat for a lease is released: its holder was killed."""

    async def release(self, reservation: Reservation, *, accepted: bool) -> None:
        """End the dispatch. `accepted`: the target took the request; False: nothing is known of its state."""

    async def report_overload(self, retry_after_ms: int = 0) -> None:
        """The target answered 429 or 503 with a drop reason: close it for everybody until a later reading."""

    async def wait(self, timeout: float, *, seen: int = -1) -> None:
        """Return when a reservation was released or the target opened, at most after `timeout` seconds.

        `seen` of a refusal: returns at once if that happened since the refusal.
        """


class QuotaMode(StrEnum):
    CONCURRENCY = "concurrency"
    """Requests at once. Each grant is a lease: if its holder was killed, it is free again after `lease_ms`."""
    RATE = "rate-limit"
    """Starts within any `window_ms`, a sliding window: at no moment are there more than `limit` in it."""


@dataclass(frozen=True, slots=True)
class Quota:
    """At most `limit` grants for each key; times in milliseconds."""

    limit: int
    mode: QuotaMode = QuotaMode.RATE
    window_ms: int = 60_000
    lease_ms: int = 15_000


@dataclass(frozen=True, slots=True)
class Grant:
    """One grant under `key`. `id` is random, since two requests may have the same id."""

    key: str
    id: str
    quota: Quota


class Quotas(Protocol):
    """Methods raise `dispatcher.broker.contract.queue.QueueError` if the broker is away: callers then send nothing."""

    async def now_ms(self) -> int:
        """The broker's clock, Unix milliseconds."""

    async def acquire(self, key: str, quota: Quota) -> Grant | Refusal:
        """A grant, or a refusal with the time from which asking again may help."""

    async def heartbeat(self, grants: Collection[Grant]) -> None:
        """Extend these grants. A grant of a rate needs no heartbeat: it ends with its window."""

    async def release(self, grant: Grant, *, used: bool) -> None:
        """End the dispatch. Under a rate, a start that was `used` stays counted until its window has passed."""

    async def wait(self, timeout: float, *, seen: int = -1) -> None:
        """Return when a grant was released since the refusal with this `seen`, at most after `timeout` seconds."""


class Changes:
    """Counts wake-ups. Read `count`, check the state, then `wait` with that count: no change in between is missed.

    A bare `asyncio.Event` loses the change that comes after the check and before the wait.
    """

    def __init__(self) -> None:
        self.count = 0
        self._event = asyncio.Event()

    def tell(self) -> None:
        """Wake everybody who waits."""
        self.count += 1
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, timeout: float, seen: int = -1) -> None:
        """Return when `count` differs from `seen` (-1: from its value now), at most after `timeout` seconds."""
        if seen not in (-1, self.count):
            return
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            return
