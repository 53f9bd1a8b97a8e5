"""Terminal results: kept by number, found by id, leased to consumers (pure)."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from dispatcher.broker.memory.order import Timeline
from dispatcher.broker.message import Result, new_token
from dispatcher.broker.queue import LeasedResult
from dispatcher.broker.validation import FINISH_REMEMBERED_MS


@dataclass(slots=True)
class _Kept:
    result: Result
    claim_fence: str
    expires_ms: int
    lease_fence: str = ""
    leased_until_ms: int = 0


class ResultStore:
    """The results of one queue; `forget(number, result)` is told when one goes."""

    def __init__(self, forget: Callable[[int, Result], None]) -> None:
        self._forget = forget
        self._kept: dict[int, _Kept] = {}
        self._ready = Timeline()
        self._leased = Timeline()
        self._finished: deque[tuple[int, str]] = deque()
        self._fences: set[str] = set()

    def put(self, number: int, result: Result, claim_fence: str, expires_ms: int) -> None:
        """Keep it until `expires_ms`, for whoever leases it first or asks for it."""
        self._kept[number] = _Kept(result, claim_fence, expires_ms)
        self._ready.add(result.finished_ms, number)

    def get(self, number: int) -> Result | None:
        kept = self._kept.get(number)
        return kept.result if kept else None

    def finished_by(self, number: int, fence: str) -> bool:
        """Whether it was this claim that published the result."""
        kept = self._kept.get(number)
        return fence in self._fences if kept is None else kept.claim_fence == fence

    def lease(self, now: int, limit: int, lease_ms: int) -> Sequence[LeasedResult]:
        """The oldest that nobody holds."""
        for number in self._leased.due(now):
            kept = self._kept[number]
            self._leased.discard(kept.leased_until_ms, number)
            self._ready.add(kept.result.finished_ms, number)
        leased = []
        for _ in range(min(limit, len(self._ready))):
            finished, number = self._ready[0]
            self._ready.discard(finished, number)
            kept = self._kept[number]
            kept.lease_fence, kept.leased_until_ms = f"{number}.{new_token()}", now + lease_ms
            self._leased.add(kept.leased_until_ms, number)
            leased.append(LeasedResult(kept.result, kept.lease_fence))
        return leased

    def ack(self, now: int, leased: LeasedResult) -> bool:
        """Drop it; False where the lease is not this one any more."""
        number = int(leased.fence.partition(".")[0])
        kept = self._kept.get(number)
        if kept is None or kept.lease_fence != leased.fence:
            return False
        self._drop(number)
        self._finished.append((now + FINISH_REMEMBERED_MS, kept.claim_fence))
        self._fences.add(kept.claim_fence)
        return True

    def expire(self, now: int) -> None:
        """Drop what was kept long enough."""
        for number in list(takewhile(lambda number: self._kept[number].expires_ms <= now, self._kept)):
            self._drop(number)
        while self._finished and self._finished[0][0] <= now:
            self._fences.discard(self._finished.popleft()[1])

    def _drop(self, number: int) -> None:
        kept = self._kept.pop(number)
        if not self._leased.discard(kept.leased_until_ms, number):
            self._ready.discard(kept.result.finished_ms, number)
        self._forget(number, kept.result)
