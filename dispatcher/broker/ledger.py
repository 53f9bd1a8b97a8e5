"""What all queues and replicas that feed one target have sent and no reading can have seen yet.

Shared where the broker is: `dispatcher.broker.memory` and `dispatcher.broker.redis` implement it over the arithmetic of
`dispatcher.broker.budget`; one contract suite runs over both.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple, Protocol

from dispatcher.broker.budget import ZERO


@dataclass(frozen=True, slots=True)
class Reading:
    """The state of a target at one instant; `at_ms` on the broker's clock, never later than the sample itself.

    `headroom`: N, in units of capacity, at that instant; 0 where the metric could not be read. `allotment`: what others
    leave of the target to us, in all (`dispatcher.broker.allotment`); 0 where that is not known.
    """

    headroom: Fraction
    at_ms: int
    allotment: Fraction = ZERO


class LedgerState(NamedTuple):
    """The broker's clock, and how many units of ours are on their way."""

    now_ms: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why not now, and the broker's time in ms before which asking again is useless (None: a newer reading).

    `seen` is handed to `Ledger.wait`, so that nothing that happens in between is missed.
    """

    reason: str
    until_ms: int | None = None
    seen: int = -1


@dataclass(frozen=True, slots=True)
class Reservation:
    """Units counted against a target for one dispatch, until released or its lease ends; `probe`: the one after a 429."""

    id: str
    units: int
    probe: bool = False


class Ledger(Protocol):
    """One target's ledger. Raises `dispatcher.broker.queue.QueueError` when the broker is away: callers then send nothing."""

    @property
    def lease_ms(self) -> int:
        """How long a reservation lives without a heartbeat; three heartbeats a lease are good measure."""

    async def now_ms(self) -> int:
        """The broker's clock."""

    async def state(self) -> LedgerState:
        """What a reading of the target is put beside."""

    async def reserve(self, reading: Reading, units: int) -> Reservation | Refusal:
        """Count `units` if reading.headroom - what began since reading.at_ms and still runs leaves room for them, or
        reading.allotment - all that runs does.

        One request larger than all room is let in when nothing of ours is in flight and headroom > 0.
        Refused while the target is closed by `overloaded`, but for one probe and then a ramp.
        """

    async def heartbeat(self, reservations: list[Reservation]) -> None:
        """They live on; one not heard of for a lease is released (its owner was killed)."""

    async def release(self, reservation: Reservation, *, accepted: bool) -> None:
        """The dispatch is over; `accepted` False: it told nothing about the target's state."""

    async def report_overload(self, retry_after_ms: int = 0) -> None:
        """The target answered 429 or an overload 503: closed for everybody until a reading later than now."""

    async def wait(self, timeout: float, *, seen: int = -1) -> None:
        """Until a reservation was released or the target opened, at most `timeout` seconds.

        With `seen` of a refusal: since that refusal, so it may return at once.
        """
