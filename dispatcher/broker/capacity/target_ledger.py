"""The ledger of one target as plain state: who may send, and how the target opens again after an overload.

Pure: every time is the broker's, in milliseconds, and is passed in. `dispatcher/broker/redis/scripts/ledger.lua` is the
same state machine inside Redis; a property test runs both over the same steps and compares them.

An overload (429 or 503 with a drop reason) at time t closes the target for all queues and replicas. It opens in steps:

1. A reading later than t, and the end of Retry-After (RFC 9110, section 10.2.3).
2. One probe, since a reading alone does not prove that requests are accepted again.
3. Once the probe was accepted: a window of two, doubled by every accepted request that began after the probe. Without
   it, all replicas would send everything that waited in the same instant, and the target would answer 429 again.
4. When the window reaches the headroom N, or `RAMP_END`, the target is open.
"""

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any, Final, Self

from dispatcher.broker.capacity.budget import admits, within_allotment
from dispatcher.broker.contract.ledger import Reading, Refusal, Reservation

RAMP_END: Final = 1024
"""A window this wide limits nobody: the target is open."""

REASONS: Final[Mapping[str, str]] = {
    "spent": "no room: the dispatch budget is spent",
    "future": "the broker's clock went back and no reading is newer",
    "lost": "the broker lost its ledger; waiting until every dispatcher has reported what it has in flight",
    "stale": "the target was overloaded and no reading is newer",
    "asked": "the target was overloaded and asked to wait",
    "probe": "the target was overloaded and a probe is in flight",
    "ramp": "the target was overloaded and opens step by step",
}
"""The text of each refusal, by the code that ledger.lua answers."""

LONGEST_RETRY_AFTER_MS: Final = 30_000
"""A longer Retry-After is cut to this: one answer must not close a target for long. A probe shows whether it has room."""

ALWAYS_NEWER_MS: Final = 2**53
"""The time of a reading without a sample, as of a gate with a constant: newer than any event."""

NEVER: Final = -1
"""Earlier than every time of the broker."""


@dataclass(slots=True)
class _Entry:
    units: int
    began_ms: int
    leased_until_ms: int


class TargetLedger:
    """All reservations of one target. One without a heartbeat for `lease_ms` is dropped: its holder was killed."""

    def __init__(self, lease_ms: int) -> None:
        self.lease_ms = lease_ms
        self._entries: dict[str, _Entry] = {}
        self.in_flight = 0
        """Units of all holders."""
        self._rejected_ms = NEVER
        self._retry_ms = NEVER
        self._window: int | None = None
        """None: open. 0: closed, or probing. Else how many may run that began after the probe did."""
        self._probe = ""
        self._opened_ms = NEVER

    def dump(self) -> dict[str, Any]:
        """Everything that `load` needs, as JSON can keep it: for a broker that stores a ledger as one value."""
        return {
            "entries": {id: list(astuple(entry)) for id, entry in self._entries.items()},
            "rejected_ms": self._rejected_ms,
            "retry_ms": self._retry_ms,
            "window": self._window,
            "probe": self._probe,
            "opened_ms": self._opened_ms,
        }

    @classmethod
    def load(cls, lease_ms: int, dumped: Mapping[str, Any]) -> Self:
        ledger = cls(lease_ms)
        ledger._entries = {id: _Entry(*entry) for id, entry in dumped["entries"].items()}
        ledger.in_flight = sum(entry.units for entry in ledger._entries.values())
        ledger._rejected_ms, ledger._retry_ms = dumped["rejected_ms"], dumped["retry_ms"]
        ledger._window, ledger._probe = dumped["window"], dumped["probe"]
        ledger._opened_ms = dumped["opened_ms"]
        return ledger

    def reserve(self, now: int, reading: Reading, units: int, id: str) -> Reservation | Refusal:
        # A reading from the future was taken before the broker's clock went back (a failover to a replica with another
        # clock). Everything in flight would seem older than it, so the whole headroom would be given away again.
        if now < reading.at_ms < ALWAYS_NEWER_MS:
            return Refusal(REASONS["future"])
        if (refusal := self._overload_refusal(now, reading)) is not None:
            return refusal
        if not self._has_room(reading, units):
            return Refusal(REASONS["spent"])
        probe = self._window == 0
        if probe:
            self._probe, self._opened_ms = id, now
        self._entries[id] = _Entry(units, now, now + self.lease_ms)
        self.in_flight += units
        return Reservation(id, units, probe)

    def _has_room(self, reading: Reading, units: int) -> bool:
        """Whether either rule admits `units`: within the allotment, or within the headroom of the reading.

        The headroom alone counts a request twice that was sent within the metric's lag: as sent, and as shown by the
        reading. At a long lag most of the target would stay unused; the allotment has no such double count.
        """
        if within_allotment(reading.allotment, self.in_flight, units):
            return True
        # what began in the reading's own millisecond may not be in it: counted, so that the error is on the safe side
        unseen = sum(entry.units for entry in self._entries.values() if entry.began_ms >= reading.at_ms)
        return admits(reading.headroom, unseen, units, idle=not self._entries)

    def _overload_refusal(self, now: int, reading: Reading) -> Refusal | None:
        """Why the target is closed after an overload; None if it is not. Opens it when the ramp has ended."""
        # A time later than now was written before the clock went back. Unclamped, the target would stay closed until
        # the new clock reaches it.
        self._rejected_ms = min(self._rejected_ms, now)
        self._retry_ms = min(self._retry_ms, now + LONGEST_RETRY_AFTER_MS)
        if reading.at_ms <= self._rejected_ms:
            return Refusal(REASONS["stale"])
        if self._window is None:
            return None
        if self._window == 0:
            if now < self._retry_ms:
                return Refusal(REASONS["asked"], self._retry_ms)
            # A probe whose lease ended is in no entry any more: the next request is the probe then.
            return Refusal(REASONS["probe"]) if self._probe in self._entries else None
        if reading.headroom <= self._window:
            self._window = None
            return None
        # A request that began before the probe is not counted: a long-running request from before would keep the window full.
        running = sum(entry.began_ms >= self._opened_ms for entry in self._entries.values())
        return Refusal(REASONS["ramp"]) if running >= self._window else None

    def heartbeat(self, now: int, reservation: Reservation, began_ms: int) -> None:
        """Extend the lease. A reservation that was dropped is counted again: its request is still running."""
        entry = self._entries.get(reservation.id)
        if entry is None:
            entry = self._entries[reservation.id] = _Entry(reservation.units, began_ms, 0)
            self.in_flight += entry.units
        entry.leased_until_ms = now + self.lease_ms

    def release(self, id: str, *, accepted: bool) -> bool:
        """Return the units; False if the reservation was no longer counted. `accepted` widens the window."""
        entry = self._entries.pop(id, None)
        if entry is None:
            return False
        self.in_flight -= entry.units
        if accepted and self._window is not None and entry.began_ms >= self._opened_ms:
            self._widen(id)
        return True

    def _widen(self, id: str) -> None:
        if self._window:
            self._window = self._window * 2 if self._window < RAMP_END else None
        elif id == self._probe:
            self._window = 2

    def report_overload(self, now: int, retry_after_ms: int) -> None:
        """Close the target; a Retry-After that is still running is never shortened."""
        self._rejected_ms = now
        self._retry_ms = max(self._retry_ms, now + retry_after_ms)
        self._window = 0
        self._probe = ""

    def drop_lapsed(self, now: int) -> bool:
        """Return the units of reservations whose lease has ended; whether there were any."""
        # a lease of more than `lease_ms` is left by a clock that went back
        for entry in self._entries.values():
            entry.leased_until_ms = min(entry.leased_until_ms, now + self.lease_ms)
        lapsed = [id for id, entry in self._entries.items() if entry.leased_until_ms <= now]
        for id in lapsed:
            self.in_flight -= self._entries.pop(id).units
        return bool(lapsed)
