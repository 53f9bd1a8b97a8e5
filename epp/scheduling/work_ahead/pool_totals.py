"""What the ledgers of a pool add up to: how fast each endpoint is beside the others, and whether other pickers send too. Pure.

Only ratios are used, so nothing depends on how fast the machines are.
"""

from collections.abc import Callable
from typing import Final

from epp.scheduling.work_ahead.ledger import WorkLedger

_PRIOR: Final = 20_000.0
"""Tokens that an endpoint is taken to have computed at the speed of the pool: the less it did, the less is concluded."""
_WINDOW: Final = 200_000.0
"""Tokens after which what was learnt counts half: a machine may become slower, or be throttled."""
_MOST: Final = 4.0
"""The most by which an endpoint is taken to differ from the average."""
_OTHERS_BELOW: Final = 0.6
_OTHERS_UNTIL: Final = 0.8
"""If less of what the workers compute was sent from here, others send too, until more was. The rest may be a wrong guess of
bytes per token, and what chat templates and tools add.
"""
_FADES: Final = 300.0
"""Seconds after which what was learnt of a worker's speed counts half, whatever it does: who gets nothing teaches nothing."""

_NOTHING: Final = (0.0, 0.0, 0.0, 0.0)


class PoolTotals:
    """Sums over the ledgers of one pool, kept up to date as they read pages."""

    __slots__ = ("_busy", "_done", "_grown", "_halved_at", "_known", "_sent", "others_send")

    def __init__(self) -> None:
        self._done = self._busy = self._sent = self._grown = 0.0
        self._halved_at: dict[WorkLedger, float] = {}
        self.others_send = False
        """Whether the workers compute clearly more than was sent from here."""
        self._known: dict[WorkLedger, tuple[float, float, float, float]] = {}

    def update(self, ledger: WorkLedger) -> None:
        """The ledger has read a page."""
        halved_at = self._halved_at.setdefault(ledger, ledger.read_at)
        if ledger.read_at - halved_at > _FADES or max(ledger.done, ledger.busy * self.speed) > _WINDOW:
            ledger.forget_half()
            self._halved_at[ledger] = ledger.read_at
        done, busy, sent, grown = self._known.get(ledger, _NOTHING)
        self._known[ledger] = (ledger.done, ledger.busy, ledger.sent, ledger.grown)
        self._done += ledger.done - done
        self._busy += ledger.busy - busy
        self._sent += ledger.sent - sent
        self._grown += ledger.grown - grown
        limit = _OTHERS_UNTIL if self.others_send else _OTHERS_BELOW
        self.others_send = self._sent < limit * self._grown

    def savepoint(self) -> Callable[[], None]:
        """A function that makes the totals what they are now."""
        sums, others_send = (self._done, self._busy, self._sent, self._grown), self.others_send
        halved_at, known = self._halved_at.copy(), self._known.copy()

        def restore() -> None:
            self._done, self._busy, self._sent, self._grown = sums
            self.others_send = others_send
            self._halved_at, self._known = halved_at, known

        return restore

    def forget(self, ledger: WorkLedger) -> None:
        """Its endpoint is gone."""
        self._halved_at.pop(ledger, None)
        done, busy, sent, grown = self._known.pop(ledger, _NOTHING)
        self._done -= done
        self._busy -= busy
        self._sent -= sent
        self._grown -= grown
        if not self._known:  # sums of floats that were added and taken away again are not quite 0
            self._done = self._busy = self._sent = self._grown = 0.0

    def slowness(self, ledger: WorkLedger) -> float:
        """How many times longer it takes than the average endpoint; more than 1 is slower."""
        slow = (ledger.busy * self.speed + _PRIOR) / (ledger.done + _PRIOR)
        return min(max(slow, 1.0 / _MOST), _MOST)

    @property
    def speed(self) -> float:
        """Of the average endpoint, in tokens a second."""
        return self._done / self._busy if self._busy > 0.0 else 0.0
