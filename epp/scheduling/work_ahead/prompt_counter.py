"""Learns of what the counter of prompt tokens on a worker's page tells: of prompts whose answers begin, or of something else. Pure.

vLLM counts a prompt with its first token, SGLang when its answer has ended. Around a first byte the first kind of counter grows
by the prompt more than it does on average, the others do not.
"""

from collections import deque
from math import inf
from typing import Final

from epp.scheduling.work_ahead.savepoint import Savepoint

_BEFORE: Final = 0.3
"""Seconds before a first byte at which the counter may grow: the byte comes over a network."""
_AFTER: Final = 0.06
_LEAST_BEFORE: Final = 1.0
"""Seconds of pages before that, of which the average growth is taken."""
_FEWEST: Final = 8
_ENOUGH: Final = 24
"""First bytes after which a worker is judged by itself."""
_LEAST_SHARE: Final = 0.6
"""The least share of a prompt's tokens, which are estimated from its bytes."""
_FOUND: Final = 0.9
_STILL_FOUND: Final = 0.8
_LEAST_SURPLUS: Final = 0.1
_APART: Final = 0.35
"""The share of what grew and ended that may differ: tokens are estimated, and an answer may be heard of a page later."""
_STILL_APART: Final = 0.5
_KEPT: Final = 0.95
_POOL_KEPT: Final = 0.99
_PAGES: Final = 64
"""Some 3 s of them where a worker is in use."""
_REST: Final = 0.5
"""Seconds between two first bytes that are judged, once there were enough."""


class KindSums:
    """Sums over first bytes, those of one worker or of all of a pool: they mostly run the same program."""

    def __init__(self) -> None:
        self.count = self.found = self.products = self.squares = 0.0

    def add(self, tokens: float, growth: float, surplus: float, kept: float) -> None:
        """Around the first byte of a prompt of so many tokens the counter grew by `growth`, `surplus` more than on average."""
        self.count = self.count * kept + 1.0
        self.found = self.found * kept + (growth >= _LEAST_SHARE * tokens)
        self.products = self.products * kept + surplus * tokens
        self.squares = self.squares * kept + tokens * tokens


_NO_SUMS: Final = KindSums()


class CountedEnds:
    """Learns whether the counter grows by each prompt when an answer that is not streamed ends, of which no first byte tells.

    `found`: then what grew and what ended are the same on each page; where prompts count as they begin, they are so by chance.
    `pool`: that of all workers, which counts at first.
    """

    __slots__ = ("_apart", "_ended", "_moved", "_pages", "_pool", "found")

    def __init__(self, pool: "CountedEnds | None" = None) -> None:
        self._pool = pool
        self.found = False
        self._ended = self._apart = self._moved = 0.0
        self._pages = 0

    def end(self, tokens: float) -> None:
        """The answer to a prompt of so many tokens ended."""
        self._ended += tokens

    def read(self, growth: float) -> None:
        """By so much the counter grew since the last page."""
        ended, self._ended = self._ended, 0.0
        if growth or ended:
            self._add(growth, ended)
            if self._pool is not None:
                self._pool._add(growth, ended)
                if self._pages < _FEWEST:
                    self.found = self._pool.found

    def _add(self, growth: float, ended: float) -> None:
        self._pages += 1
        self._apart = self._apart * _KEPT + abs(growth - ended)
        self._moved = self._moved * _KEPT + growth + ended
        most = _STILL_APART if self.found else _APART
        self.found = self._pages >= _FEWEST and self._apart < most * self._moved

    def save(self, savepoint: Savepoint) -> None:
        for ends in (self,) if self._pool is None else (self, self._pool):
            savepoint.keep(ends, "found", "_ended", "_apart", "_moved", "_pages")


class CounterKind:
    """`begins`: whether it counts prompts with their first tokens; None: not known yet."""

    def __init__(self, pool: KindSums) -> None:
        self._pool = pool
        self.begins: bool | None = None
        self._tokens = self._began_at = 0.0
        """These belong to the answer that is judged next. One at a time is enough, and cheap."""
        self._due = inf
        """When it is judged; inf: there is none."""
        self._rests_until = -inf
        # bounded: its maxlen
        self._pages: deque[tuple[float, float]] = deque(maxlen=_PAGES)
        self._own = KindSums()
        self._heard = 0

    def first_byte(self, tokens: float, at: float) -> None:
        """The answer to a prompt of so many tokens began; 0: it is not known which."""
        if tokens > 0.0 and self._due == inf and at >= self._rests_until:
            self._tokens, self._began_at = tokens, at
            self._due = at + _AFTER

    def read(self, computed: float, now: float) -> None:
        """The counter on a page. One that became smaller is that of a new process."""
        pages = self._pages
        if pages and computed < pages[-1][1]:
            pages.clear()
            self._due = inf
        pages.append((now, computed))
        if self._due <= now:
            self._due = inf
            if self._heard >= _ENOUGH:
                self._rests_until = now + _REST
            self._judge(self._tokens, self._began_at, computed, now)

    def _judge(self, tokens: float, at: float, computed: float, now: float) -> None:
        since, before = -1.0, 0.0
        for page_at, counted in reversed(self._pages):
            since, before = page_at, counted
            if page_at <= at - _BEFORE:
                break
        if since < 0.0 or since > at - _BEFORE or now - at > 1.0:
            return
        began_at, began = self._pages[0]
        if since - began_at < _LEAST_BEFORE:
            return
        rate = (before - began) / (since - began_at)
        growth = computed - before
        # one that is wrong once is no worse than one that knows nothing
        surplus = min(max(growth - rate * (now - since), -tokens), 2.0 * tokens)
        own, pool = self._own, self._pool
        own.add(tokens, growth, surplus, _KEPT)
        pool.add(tokens, growth, surplus, _POOL_KEPT)
        self._heard += 1
        if self._heard >= _FEWEST:
            others = _NO_SUMS if self._heard >= _ENOUGH else pool
            # it grows by each prompt around its first byte; on a busy worker that alone may be chance
            found = (own.found + others.found) / (own.count + others.count)
            share = (own.products + others.products) / (own.squares + others.squares)
            self.begins = found > (_STILL_FOUND if self.begins else _FOUND) and share > _LEAST_SURPLUS

    def save(self, savepoint: Savepoint) -> None:
        savepoint.keep(self, "begins", "_heard", "_tokens", "_began_at", "_due", "_rests_until", "_pages")
        for sums in (self._own, self._pool):
            savepoint.keep(sums, "count", "found", "products", "squares")
