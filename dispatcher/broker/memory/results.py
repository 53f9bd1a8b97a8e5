"""Terminal results in memory: stored by number, leased to consumers, dropped after their time (pure)."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from dispatcher.broker.contract.message import Result, new_token
from dispatcher.broker.contract.queue import LeasedResult
from dispatcher.broker.contract.validation import FINISH_REMEMBERED_MS
from dispatcher.broker.memory.order import Timeline


@dataclass(slots=True)
class _StoredResult:
    result: Result
    claim_fence: str
    expires_ms: int
    lease_fence: str = ""
    leased_until_ms: int = 0


class ResultStore:
    """The results of one queue. `forget(number, result)` is called for each that is dropped."""

    def __init__(self, forget: Callable[[int, Result], None]) -> None:
        self._forget = forget
        self._stored: dict[int, _StoredResult] = {}
        self._ready = Timeline()
        self._leased = Timeline()
        self._acked: deque[tuple[int, str]] = deque()
        self._acked_fences: set[str] = set()

    def add(self, number: int, result: Result, claim_fence: str, expires_ms: int) -> None:
        self._stored[number] = _StoredResult(result, claim_fence, expires_ms)
        self._ready.add(result.finished_ms, number)

    def get(self, number: int) -> Result | None:
        stored = self._stored.get(number)
        return stored.result if stored else None

    def finished_by(self, number: int, fence: str) -> bool:
        """Whether this claim published the result: a `finish` that is repeated after a lost answer succeeds again."""
        stored = self._stored.get(number)
        return fence in self._acked_fences if stored is None else stored.claim_fence == fence

    def lease(self, now: int, limit: int, lease_ms: int) -> Sequence[LeasedResult]:
        """The oldest results that nobody holds."""
        for number in self._leased.due(now):
            stored = self._stored[number]
            self._leased.discard(stored.leased_until_ms, number)
            self._ready.add(stored.result.finished_ms, number)
        leased = []
        for _ in range(min(limit, len(self._ready))):
            finished, number = self._ready[0]
            self._ready.discard(finished, number)
            stored = self._stored[number]
            stored.lease_fence, stored.leased_until_ms = f"{number}.{new_token()}", now + lease_ms
            self._leased.add(stored.leased_until_ms, number)
            leased.append(LeasedResult(stored.result, stored.lease_fence))
        return leased

    def ack(self, now: int, leased: LeasedResult) -> bool:
        """Drop the result; False if another consumer has leased it since."""
        number = int(leased.fence.partition(".")[0])
        stored = self._stored.get(number)
        return stored is not None and stored.lease_fence == leased.fence and self.remove(now, number)

    def remove(self, now: int, number: int) -> bool:
        """Drop the result; False if there is none."""
        stored = self._stored.get(number)
        if stored is None:
            return False
        self._drop(number)
        self._acked.append((now + FINISH_REMEMBERED_MS, stored.claim_fence))
        self._acked_fences.add(stored.claim_fence)
        return True

    def expire(self, now: int) -> None:
        # Dicts keep insertion order, and an earlier result expires earlier: the search stops at the first that stays.
        for number in list(takewhile(lambda number: self._stored[number].expires_ms <= now, self._stored)):
            self._drop(number)
        while self._acked and self._acked[0][0] <= now:
            self._acked_fences.discard(self._acked.popleft()[1])

    def _drop(self, number: int) -> None:
        stored = self._stored.pop(number)
        if not self._leased.discard(stored.leased_until_ms, number):
            self._ready.discard(stored.result.finished_ms, number)
        self._forget(number, stored.result)
