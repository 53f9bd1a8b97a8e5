"""Brings the batches of one publisher into their order, and knows when some are missing. Pure.

Batches are numbered from 0 by each life of a publisher. A lower number than the last one is another life: its cache began
empty. A missing number may have been a removal, so from then on nothing is believed until a replay has filled it. A replay
begins with the batch that was applied last: only if that is the same one is it the same life, whose blocks stay.
"""

from collections import deque
from enum import StrEnum
from typing import Final

from xxhash import xxh3_64_intdigest

from epp.scheduling.kv_events.batches import BatchError, read_batch
from epp.scheduling.kv_events.cache_index import CacheHoldings, CacheIndex

_MOST_HELD: Final = 10_000
"""Live batches that wait for the end of a replay; vLLM keeps as many for a replay."""
_MOST_HELD_BYTES: Final = 64 * 1024 * 1024
_MOST_FUTILE: Final = 3
"""Replays in a row that do not lead up to what was published meanwhile."""
_MOST_STALE: Final = 16
"""Batches in a row that are older than the last one by number and by time. More are no doubles: the clock was set back."""


class Knowledge(StrEnum):
    """EXACT: all that the worker holds is known. PARTIAL: what is known is held, but the worker may hold more.
    CATCHING_UP: a replay runs; what was known before counts no longer. UNKNOWN: nothing has come yet."""

    UNKNOWN = "unknown"
    CATCHING_UP = "catching up"
    PARTIAL = "partial"
    EXACT = "exact"


class KvEventStream:
    """Applies the batches of one publisher to the index. `can_replay`: it has a socket that sends batches again.

    The owner calls `begin_replay`, `replayed` for each answer and `end_replay` whenever `wants_replay` is true, and `live` for
    each published batch at any time.
    """

    def __init__(self, index: CacheIndex, holdings: CacheHoldings, *, can_replay: bool) -> None:
        self._index = index
        self.holdings = holdings
        self.can_replay = can_replay
        self.wants_replay = can_replay
        self.replaying = False
        self.restarts = 0
        self.gaps = 0
        self.batches = 0
        self.faulty = 0
        self.unknown = 0
        self._next = 0
        self._last_digest = 0
        self._last_time = float("-inf")
        self._stale = 0
        self._heard = False
        self._futile = 0
        self._whole = True
        """Since the last clear, every batch from the first on was applied."""
        self._checked = False
        """This replay began as it should."""
        self._held: deque[tuple[int, bytes]] = deque(maxlen=_MOST_HELD)
        self._held_bytes = 0

    @property
    def knowledge(self) -> Knowledge:
        if self.wants_replay or self.replaying:
            return Knowledge.CATCHING_UP
        if not self._heard:
            return Knowledge.UNKNOWN
        lacks = self.holdings.orphans or self.holdings.refused
        return Knowledge.EXACT if self._whole and not lacks else Knowledge.PARTIAL

    def live(self, number: int, payload: bytes) -> None:
        """A batch was published."""
        if self.replaying or self.wants_replay:
            self._hold(number, payload)
        elif number == self._next:
            self._apply(number, payload)
        elif number > self._next:
            self.gaps += 1
            self._lose(number, payload)
        elif self._is_stale(payload):
            return
        else:
            self.restarts += not self.can_replay  # else the replay says whether it is
            self._lose(number, payload)

    def begin_replay(self) -> int:
        """The number of the first batch to ask for."""
        self.wants_replay, self.replaying, self._checked = False, True, not self._next
        self._index.changed()
        return max(0, self._next - 1)

    def replayed(self, number: int, payload: bytes) -> bool:
        """A batch came again. False: it shows that what is known is of another life; a replay from the first batch is due."""
        if not self._checked:
            if number == self._next - 1 and _digest(payload) == self._last_digest:
                self._checked = True
                return True
            self._start_over()
            return False
        if number < self._next:
            return True
        if number > self._next:  # older ones are no longer kept there
            self.gaps += 1
            self._forget(number)
        self._apply(number, payload)
        return True

    def end_replay(self, *, complete: bool) -> None:
        """`complete`: the publisher said that this was all."""
        self.replaying = False
        if complete and not self._checked:
            self._start_over()  # it does not know the batch that was applied last
            return
        if not complete:
            self._forget(self._next)
            self._whole = False
        self._heard = True
        self._index.changed()
        self._catch_up()

    def _catch_up(self) -> None:
        """Apply what was published during the replay. What it does not lead up to needs another one, unless that did not help."""
        held, self._held, self._held_bytes = self._held, deque(maxlen=_MOST_HELD), 0
        for number, payload in held:
            if number == self._next:
                self._futile = 0
                self._apply(number, payload)
            elif number > self._next or not self._is_late(payload):
                self._futile += 1
                self.wants_replay = self.can_replay and self._futile < _MOST_FUTILE
                return

    def interrupted(self) -> None:
        """The connection was lost: batches may be missing, and it may be another process that publishes now."""
        self._index.changed()
        self._heard = self.replaying = False
        if self.can_replay:
            self.wants_replay = True
        else:
            self._forget(0)
            self._last_time = float("-inf")

    def give_up_replay(self) -> None:
        """The publisher does not answer: go on with what it publishes, without what is not known to be still there."""
        self.can_replay = self.wants_replay = False
        self.end_replay(complete=False)

    def _lose(self, number: int, payload: bytes) -> None:
        """Batches before this one are missing, or it is of another life."""
        if self.can_replay:
            self.wants_replay = True
            self._index.changed()
            self._hold(number, payload)
        else:
            self._forget(number)
            self._apply(number, payload)

    def _start_over(self) -> None:
        self._forget(0)
        self._last_time = float("-inf")
        self.restarts += 1
        self.replaying, self.wants_replay = False, True

    def _forget(self, following: int) -> None:
        """Nothing is known of what was before this batch."""
        self._index.clear(self.holdings)
        self._next = following
        self._whole = following == 0

    def _hold(self, number: int, payload: bytes) -> None:
        if len(self._held) == _MOST_HELD:
            self._held_bytes -= len(self._held[0][1])
        self._held.append((number, payload))
        self._held_bytes += len(payload)
        while self._held_bytes > _MOST_HELD_BYTES:
            self._held_bytes -= len(self._held.popleft()[1])

    def _is_stale(self, payload: bytes) -> bool:
        """Whether a batch of a lower number is one of this life that comes late or twice."""
        stale = self._is_late(payload)
        self._stale = self._stale + 1 if stale else 0
        return stale and self._stale <= _MOST_STALE

    def _is_late(self, payload: bytes) -> bool:
        try:
            return read_batch(payload).time <= self._last_time
        except BatchError:
            return True

    def _apply(self, number: int, payload: bytes) -> None:
        self._next = number + 1
        self._stale = 0
        self._heard = True
        self._last_digest = _digest(payload)
        self.batches += 1
        try:
            batch = read_batch(payload)
        except BatchError:
            self.faulty += 1
            self._forget(number + 1)
            return
        self._last_time = batch.time
        self.unknown += batch.unknown
        if batch.faulty:  # one of them may have removed blocks
            self.faulty += batch.faulty
            self._forget(number + 1)
        self._index.apply(self.holdings, batch.events)


def _digest(payload: bytes) -> int:
    return xxh3_64_intdigest(payload)
