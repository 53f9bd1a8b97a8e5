"""How fast each endpoint computes prompts, compared with the others of its pool. Pure.

Only the ratio is used, so nothing depends on how fast the machines are.
"""

from typing import Final

from epp.scheduling.work_ahead.ledger import WorkLedger

_PRIOR: Final = 20_000.0
"""Tokens that an endpoint is taken to have computed at the speed of the pool: the less it did, the less is concluded."""
_WINDOW: Final = 200_000.0
"""Tokens after which what was learnt counts half: a machine may become slower, or be throttled."""
_MOST: Final = 4.0
"""The most that two endpoints are taken to differ from the average."""


class PoolSpeed:
    """The average of a pool, and each endpoint beside it."""

    __slots__ = ("_busy", "_done", "_seen")

    def __init__(self) -> None:
        self._done = 0.0
        self._busy = 0.0
        self._seen: dict[WorkLedger, tuple[float, float]] = {}

    def learn(self, ledger: WorkLedger) -> None:
        """The ledger has read a page."""
        done, busy = self._seen.get(ledger, (0.0, 0.0))
        if ledger.done == done and ledger.busy == busy:
            return
        if max(ledger.done, ledger.busy * self._average) > _WINDOW:
            ledger.decay(0.5)
        self._done += ledger.done - done
        self._busy += ledger.busy - busy
        self._seen[ledger] = (ledger.done, ledger.busy)

    def forget(self, ledger: WorkLedger) -> None:
        """Its endpoint is gone."""
        done, busy = self._seen.pop(ledger, (0.0, 0.0))
        self._done -= done
        self._busy -= busy

    def slowness(self, ledger: WorkLedger) -> float:
        """How many times longer it takes than the average; more than 1 is slower."""
        slow = (ledger.busy * self._average + _PRIOR) / (ledger.done + _PRIOR)
        return min(max(slow, 1.0 / _MOST), _MOST)

    @property
    def _average(self) -> float:
        """Tokens a second."""
        return self._done / self._busy if self._busy > 0.0 else 0.0
