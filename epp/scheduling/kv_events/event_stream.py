"""Brings the batches of one publisher into their order, and knows when some are missing. Pure.

Batches are numbered from 0 by each life of a publisher. A lower number than the last one is another life: its cache began
empty. A missing number may have been a removal, so from then on nothing is believed until a replay has filled it. A replay
begins with the batch that was applied last: only if that is the same one is it the same life, whose blocks stay.
"""

from collections import deque
from enum import StrEnum
from typing import Final

from xxhash import xxh3_64_intdigest

from epp.scheduling.kv_events.batches import BatchError, BlocksCleared, Steps, batch_steps, sent_at
from epp.scheduling.kv_events.cache_holdings import CacheHoldings
from epp.scheduling.kv_events.cache_index import CacheIndex
from epp.scheduling.kv_events.snapshot import CacheSnapshot

_MOST_HELD: Final = 10_000
"""Live batches that wait for the end of a replay; vLLM keeps as many for a replay."""
_MOST_HELD_BYTES: Final = 32 * 1024 * 1024
_MOST_FUTILE: Final = 3
"""Replays in a row that do not lead up to what was published meanwhile."""
_MOST_STALE: Final = 16
"""Batches in a row that are older than the last one by number and by time. More are no doubles: the clock was set back."""


class Knowledge(StrEnum):
    """EXACT: all that the worker holds is known. PARTIAL: what is known is held, but the worker may hold more, until it clears all.
    CATCHING_UP: a replay runs; what was known before counts no longer. UNKNOWN: nothing has come yet."""

    UNKNOWN = "unknown"
    CATCHING_UP = "catching up"
    PARTIAL = "partial"
    EXACT = "exact"


class KvEventStream:
    """Applies the batches of one publisher to the index. `can_replay`: it has a socket that sends batches again.

    The owner calls `begin_replay`, `replayed` for each answer and `end_replay` whenever `wants_replay` is true, and `live` for
    each published batch at any time; one after the other, each to its end. `interrupted` may come between two steps.
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
        self._applying = False
        """A batch is applied in part."""
        self._interruptions = 0

    @property
    def knowledge(self) -> Knowledge:
        if self.wants_replay or self.replaying:
            return Knowledge.CATCHING_UP
        if not self._heard:
            return Knowledge.UNKNOWN
        lacks = self.holdings.orphans or self.holdings.refused
        return Knowledge.EXACT if self._whole and not lacks else Knowledge.PARTIAL

    def live(self, number: int, payload: bytes) -> Steps[None]:
        """A batch was published."""
        if self.replaying:
            self._hold(number, payload)
        elif self.wants_replay:
            return  # it was published before the replay is asked for, so that has it
        elif number == self._next:
            yield from self._apply(number, payload)
        elif number > self._next:
            self.gaps += 1
            yield from self._lose(number, payload)
        elif not self._is_stale(payload):
            self.restarts += not self.can_replay  # else the replay says whether it is
            yield from self._lose(number, payload)

    def begin_replay(self) -> int:
        """The number of the first batch to ask for."""
        self.wants_replay, self.replaying, self._checked = False, True, not self._next
        self._drop_held()
        self._index.changed()
        return max(0, self._next - 1)

    def replayed(self, number: int, payload: bytes) -> Steps[bool]:
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
        yield from self._apply(number, payload)
        return True

    def end_replay(self, *, complete: bool) -> Steps[None]:
        """`complete`: the publisher said that this was all."""
        if complete and not self._checked:
            self._start_over()  # it does not know the batch that was applied last
            return
        if not complete:
            self._forget(self._next)
            self._whole = False
        interruptions = self._interruptions
        yield from self._catch_up()
        if interruptions == self._interruptions:
            self.replaying, self._heard = False, True
            self._index.changed()

    def _catch_up(self) -> Steps[None]:
        """Apply what was published during the replay. What it does not lead up to needs another one, unless that did not help."""
        while self._held:
            number, payload = self._held.popleft()
            self._held_bytes -= len(payload)
            if number == self._next:
                self._futile = 0
                yield from self._apply(number, payload)
            elif number > self._next or not self._is_late(payload):
                self._futile += 1
                if self.can_replay and self._futile < _MOST_FUTILE:
                    self.wants_replay = True
                    self._drop_held()
                else:
                    self._forget(number)
                    yield from self._apply(number, payload)

    def _drop_held(self) -> None:
        self._held.clear()
        self._held_bytes = 0

    def interrupted(self) -> None:
        """The connection was lost: batches may be missing, and it may be another process that publishes now."""
        self._index.changed()
        self._interruptions += 1
        self._heard = self.replaying = False
        self.wants_replay = self.can_replay
        self._drop_held()
        if self._applying or not self.can_replay:
            self._applying = False
            self._forget(0)
            self._last_time = float("-inf")

    def begin_anew(self) -> None:
        """Nothing that is known can be used."""
        self.interrupted()
        self._forget(0)
        self._last_time = float("-inf")

    def doubt(self) -> None:
        """It may hold what is not known, until it says that it holds nothing."""
        self._whole = False
        self._index.changed()

    def snapshot(self) -> Steps[CacheSnapshot | None]:
        """To be handed to another picker; None: not all is known."""
        if self.knowledge is not Knowledge.EXACT or not self._next:
            return None
        interruptions = self._interruptions
        held = yield from self._index.held_by(self.holdings)
        if interruptions != self._interruptions:
            return None
        return CacheSnapshot(self._index.layout, self._next, self._last_digest, self._last_time, held)

    def adopt(self, given: CacheSnapshot) -> Steps[bool]:
        """Go on from what another picker knew, if less is known here. It counts once the publisher sent its last batch again."""
        if self.knowledge is not Knowledge.PARTIAL or not self.can_replay:
            return False
        if given.layout != self._index.layout or given.following < 1:
            return False
        self._forget(0)
        self._applying = self.wants_replay = True
        interruptions = self._interruptions
        for _ in self._index.restore(self.holdings, given.held):
            yield
            if interruptions != self._interruptions:
                return False
        self._applying = False
        self._next, self._last_digest, self._last_time = given.following, given.digest, given.time
        return True

    def give_up_replay(self) -> Steps[None]:
        """The publisher does not answer: go on with what it publishes, without what is not known to be still there."""
        self.can_replay = self.wants_replay = False
        yield from self.end_replay(complete=False)

    def _lose(self, number: int, payload: bytes) -> Steps[None]:
        """Batches before this one are missing, or it is of another life."""
        if self.can_replay:
            self.wants_replay = True
            self._index.changed()
        else:
            self._forget(number)
            yield from self._apply(number, payload)

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
            return sent_at(payload) <= self._last_time
        except BatchError:
            return True

    def _apply(self, number: int, payload: bytes) -> Steps[None]:
        interruptions = self._interruptions
        try:
            batch = yield from batch_steps(payload)
        except BatchError:
            batch = None
        if interruptions != self._interruptions:
            return
        self._next = number + 1
        self._stale = 0
        self._heard = True
        self._last_digest = _digest(payload)
        self.batches += 1
        if batch is None:
            self.faulty += 1
            self._forget(number + 1)
            return
        self._last_time = batch.time
        self.unknown += batch.unknown
        if batch.faulty:  # one of them may have removed blocks
            self.faulty += batch.faulty
            self._forget(number + 1)
        self._applying = True
        for _ in self._index.apply(self.holdings, batch.events):
            yield
            if interruptions != self._interruptions:
                return
        self._applying = False
        if not (self._whole or batch.faulty) and any(isinstance(one, BlocksCleared) for one in batch.events):
            self._whole = True  # since then nothing was missed
            self._index.changed()


def _digest(payload: bytes) -> int:
    return xxh3_64_intdigest(payload)
