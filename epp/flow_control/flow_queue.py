"""The requests of one flow that wait, in the order of the band's ordering policy. Pure."""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final

from epp.flow_control.queued_request import QueuedRequest

_SLACK: Final = 16
"""Entries that a heap may hold besides twice those that wait, before it is made anew."""


class FlowQueue:
    """An `epp.flow_control.fairness_policy.Flow`: a heap, in which what left stays until it comes to the top."""

    __slots__ = ("_heap", "_waiting", "bytes", "fairness_id")

    def __init__(self, fairness_id: str) -> None:
        self.fairness_id = fairness_id
        self.bytes = 0
        self._heap: list[tuple[float, int, QueuedRequest]] = []
        self._waiting: dict[int, QueuedRequest] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def first(self) -> QueuedRequest | None:
        heap = self._heap
        while heap:
            _, sequence, queued = heap[0]
            if sequence in self._waiting:
                return queued
            heappop(heap)
        return None

    def newest(self) -> Iterator[QueuedRequest]:
        """All of them, the one that came last first."""
        return reversed(self._waiting.values())

    def add(self, queued: QueuedRequest) -> None:
        self._waiting[queued.sequence] = queued
        self.bytes += queued.size
        heappush(self._heap, (queued.rank, queued.sequence, queued))

    def remove(self, queued: QueuedRequest) -> None:
        del self._waiting[queued.sequence]
        self.bytes -= queued.size
        if len(self._heap) > 2 * len(self._waiting) + _SLACK:
            self._heap = [(one.rank, one.sequence, one) for one in self._waiting.values()]
            heapify(self._heap)
