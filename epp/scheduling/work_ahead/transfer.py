"""Learns what it takes to bring the KV cache of a prompt to another worker, from streamed answers of requests on two workers. Pure.

A decode worker sends the headers of its answer when it has the request, and then fetches the KV cache. So what lies between the
headers and the first byte is the transfer, and one step of decoding. Where a worker sends both together, that says nothing.
"""

from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Any, Final

TRANSFER_SECONDS: Final = 0.04
"""Each transfer takes this until more is known: a second request and the connection to the other worker."""
TRANSFER_TOKEN_SECONDS: Final = 0.00001
"""And each token: some 330 KB of a model of 70 billion parameters, at 33 GB/s."""
_SPEED: Final = 10_000.0
"""Tokens of prompts that a worker computes in a second, until that is learnt."""
_TOGETHER: Final = 0.002
"""Seconds. Headers and a first byte that are no further apart came together."""
_KEPT: Final = 64
_FEWEST: Final = 8
_APART: Final = 256.0
"""Tokens by which two prompts must differ to say what a token takes."""


class TransferTimes:
    """`seconds`: of each transfer; `token_seconds`: more for each token. The middle of the last answers counts, so that one which
    waited for a long step, or for room, says little.
    """

    def __init__(self) -> None:
        self.seconds = TRANSFER_SECONDS
        self.token_seconds = TRANSFER_TOKEN_SECONDS
        self._answers = 0
        # bounded: its maxlen
        self._recent: deque[tuple[float, float]] = deque(maxlen=_KEPT)

    def in_tokens(self, speed: float) -> tuple[float, float]:
        """The same in tokens of prompts that an average worker computes meanwhile. `speed`: in a second; 0: not known."""
        speed = speed or _SPEED
        return self.seconds * speed, self.token_seconds * speed

    def observe(self, tokens: float, seconds: float) -> None:
        """It took this long for a prompt of which the decode worker lacked so many tokens."""
        if seconds <= _TOGETHER:
            return
        self._recent.append((tokens, seconds))
        self._answers += 1
        if self._answers % _FEWEST == 0:
            self._fit()

    def learnt(self) -> Mapping[str, Any]:
        """Returns the numbers as `/debug/endpoints` and the page show them: seconds, and answers."""
        return {
            "answers": self._answers,
            "seconds": round(self.seconds, 6),
            "token_seconds": round(self.token_seconds, 9),
        }

    def _fit(self) -> None:
        ordered = sorted(self._recent)
        half = len(ordered) // 2
        slopes = [
            (seconds - before) / (tokens - fewer)
            for (fewer, before), (tokens, seconds) in zip(ordered, ordered[half:], strict=False)
            if tokens - fewer >= _APART
        ]
        if len(slopes) >= _FEWEST // 2:
            self.token_seconds = max(0.0, median(slopes))
        rest = [seconds - self.token_seconds * tokens for tokens, seconds in ordered]
        self.seconds = max(0.0, median(rest))


class AwaitedTransfer:
    """The first byte of an answer whose prompt another worker computes. `tokens`: those that the decode worker lacks."""

    __slots__ = ("_times", "_tokens", "seconds")

    def __init__(self, times: TransferTimes, tokens: float) -> None:
        self.seconds = -1.0
        self._times = times
        self._tokens = tokens

    def came(self, at: float, now: float, answered_at: float) -> None:
        if answered_at >= 0.0:
            self._times.observe(self._tokens, at - answered_at)

    def ended(self) -> None:
        pass
