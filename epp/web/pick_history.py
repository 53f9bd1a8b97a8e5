"""How many picks each endpoint got in the last minutes, and how much of their prompts it was believed to hold. Pure."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from epp.endpoints.endpoint import Endpoint, Floats, Key
from epp.scheduling.pick import Credit

INTERVAL: Final = 15.0
"""Seconds between two samples."""
_SAMPLES: Final = 20
"""Five minutes."""


class RecentPicks(NamedTuple):
    """Columns over the endpoints. `shares` of all picks; `hits`: of the prompts' bytes, NaN where none was sent.

    `seconds`: that they are about.
    """

    shares: Floats
    hits: Floats
    picks_per_second: float
    seconds: float


class _PickSample(NamedTuple):
    at: float
    picks: Mapping[Key, int]
    credits: Mapping[Key, tuple[int, int]]
    """Held and total."""


class PickHistory:
    """`picks`: by endpoint, since the picker began. `credits`: the same of the prompts' bytes.

    `others`: picks of the other processes of this picker, and of their prompts the bytes held and all.
    """

    def __init__(
        self,
        picks: dict[Key, int],
        credits: Callable[[], Mapping[Key, Credit]],
        others: Callable[[], Mapping[Key, tuple[int, int, int]]] = dict,
    ) -> None:
        self._picks = picks
        self._credits = credits
        self._others = others
        self._samples: deque[_PickSample] = deque(maxlen=_SAMPLES)

    def sample(self, endpoints: Sequence[Endpoint], now: float) -> None:
        """To be called every INTERVAL; forgets endpoints that are gone."""
        for key in self._picks.keys() - {endpoint.key for endpoint in endpoints}:
            del self._picks[key]
        self._samples.append(_PickSample(now, *self._counts()))

    def _counts(self) -> tuple[dict[Key, int], dict[Key, tuple[int, int]]]:
        picks = self._picks.copy()
        credits = {key: (credit.held, credit.total) for key, credit in self._credits().items()}
        for key, (sent, held, total) in self._others().items():
            picks[key] = picks.get(key, 0) + sent
            own_held, own_total = credits.get(key, (0, 0))
            credits[key] = own_held + held, own_total + total
        return picks, credits

    def recent(self, endpoints: Sequence[Endpoint], now: float) -> RecentPicks:
        before = self._samples[0] if self._samples else _PickSample(now, {}, {})
        (counts, credits), count = self._counts(), len(endpoints)
        picks, held, total = np.zeros(count), np.zeros(count), np.zeros(count)
        for row, endpoint in enumerate(endpoints):
            key = endpoint.key
            picks[row] = counts.get(key, 0) - before.picks.get(key, 0)
            (now_held, now_total), (old_held, old_total) = (
                credits.get(key, (0, 0)),
                before.credits.get(key, (0, 0)),
            )
            held[row], total[row] = now_held - old_held, now_total - old_total
        # a producer that was replaced, as by another configuration, counts anew
        picks, total = np.maximum(picks, 0), np.maximum(total, 0)
        whole, seconds = float(picks.sum()), now - before.at
        with np.errstate(divide="ignore", invalid="ignore"):
            hits = np.where(total > 0, np.clip(held / total, 0.0, 1.0), np.nan)
        return RecentPicks(
            picks / whole if whole else np.full(count, np.nan),
            hits,
            whole / seconds if seconds > 0 else 0.0,
            seconds,
        )
