"""The book behind one target's ledger: who has room, who must wait, when a target that said 429 opens again.

Pure: times are the broker's milliseconds, passed in. `dispatcher/broker/redis/scripts/ledger.lua` keeps the same book.

A rejection at time t closes the target. It opens by steps: a reading later than t and the end of Retry-After; one
probe; when that was accepted a window of two, doubled by every request of the window that is accepted; when the
window is no narrower than N, or RAMP_END, it is open.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dispatcher.broker.budget import admits, within_allotment
from dispatcher.broker.ledger import Reading, Refusal, Reservation

RAMP_END: Final = 1024
"""A window that wide holds nobody up."""

REASONS: Final[Mapping[str, str]] = {
    "spent": "no room: the budget is spent",
    "future": "the broker's clock went back and no reading is newer",
    "lost": "the broker lost what was on its way and hears of it again",
    "stale": "the target was overloaded and no reading is newer",
    "asked": "the target was overloaded and asked to wait",
    "probe": "the target was overloaded and a probe is on its way",
    "ramp": "the target was overloaded and opens step by step",
}
"""Why not now, by the word that the script has for it."""

LONGEST_RETRY_AFTER_MS: Final = 3_600_000
"""A target that asks to wait for longer is asked again after this."""

ALWAYS_NEWER_MS: Final = 2**53
"""The time of a reading that is none: newer than whatever happens."""

NEVER: Final = -1
"""Earlier than every time of the broker."""


@dataclass(slots=True)
class _Entry:
    units: int
    began_ms: int
    leased_until_ms: int


class TargetAccount:
    """All reservations of one target. Whoever is not heard of for `lease_ms` is forgotten."""

    def __init__(self, lease_ms: int) -> None:
        self.lease_ms = lease_ms
        self._entries: dict[str, _Entry] = {}
        self._units = 0
        self._rejected_ms = NEVER
        self._retry_ms = NEVER
        self._window: int | None = None
        """None: open. 0: closed, or probing. Else how many may run that began since the probe did."""
        self._probe = ""
        self._opened_ms = NEVER

    @property
    def in_flight(self) -> int:
        """Units, of all holders."""
        return self._units

    def reserve(self, now: int, reading: Reading, units: int, id: str) -> Reservation | Refusal:
        if now < reading.at_ms < ALWAYS_NEWER_MS:
            return Refusal(REASONS["future"])
        if (refusal := self._closed(now, reading)) is not None:
            return refusal
        if not self._has_room(reading, units):
            return Refusal(REASONS["spent"])
        probe = self._window == 0
        if probe:
            self._probe, self._opened_ms = id, now
        self._entries[id] = _Entry(units, now, now + self.lease_ms)
        self._units += units
        return Reservation(id, units, probe)

    def _has_room(self, reading: Reading, units: int) -> bool:
        if within_allotment(reading.allotment, self._units, units):
            return True
        unseen = sum(entry.units for entry in self._entries.values() if entry.began_ms >= reading.at_ms)
        return admits(reading.headroom, unseen, units, idle=not self._entries)

    def _closed(self, now: int, reading: Reading) -> Refusal | None:
        """Why overload lets nobody pass, None where it does not."""
        self._rejected_ms = min(self._rejected_ms, now)  # a clock that goes back closes nothing for good
        self._retry_ms = min(self._retry_ms, now + LONGEST_RETRY_AFTER_MS)
        if reading.at_ms <= self._rejected_ms:
            return Refusal(REASONS["stale"])
        if self._window is None:
            return None
        if self._window == 0:
            if now < self._retry_ms:
                return Refusal(REASONS["asked"], self._retry_ms)
            return Refusal(REASONS["probe"]) if self._probe in self._entries else None
        if reading.headroom <= self._window:
            self._window = None
            return None
        running = sum(entry.began_ms >= self._opened_ms for entry in self._entries.values())
        return Refusal(REASONS["ramp"]) if running >= self._window else None

    def heartbeat(self, now: int, reservation: Reservation, began_ms: int) -> None:
        """Its holder lives; one that was forgotten is counted again, since it runs."""
        entry = self._entries.get(reservation.id)
        if entry is None:
            entry = self._entries[reservation.id] = _Entry(reservation.units, began_ms, 0)
            self._units += entry.units
        entry.leased_until_ms = now + self.lease_ms

    def release(self, id: str, *, accepted: bool) -> bool:
        """Whether it was still counted."""
        entry = self._entries.pop(id, None)
        if entry is None:
            return False
        self._units -= entry.units
        if accepted and self._window is not None and entry.began_ms >= self._opened_ms:
            self._widen(id)
        return True

    def _widen(self, id: str) -> None:
        if self._window:
            self._window = self._window * 2 if self._window < RAMP_END else None
        elif id == self._probe:
            self._window = 2

    def report_overload(self, now: int, retry_after_ms: int) -> None:
        self._rejected_ms = now
        self._retry_ms = max(self._retry_ms, now + retry_after_ms)
        self._window = 0
        self._probe = ""

    def forget_lapsed(self, now: int) -> bool:
        """Give back what nobody was heard of for; whether there was any."""
        for entry in self._entries.values():  # more than a lease is what a clock that went back leaves
            entry.leased_until_ms = min(entry.leased_until_ms, now + self.lease_ms)
        lapsed = [id for id, entry in self._entries.items() if entry.leased_until_ms <= now]
        for id in lapsed:
            self._units -= self._entries.pop(id).units
        return bool(lapsed)
