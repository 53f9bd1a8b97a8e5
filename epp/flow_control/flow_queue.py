"""The requests of one flow that wait, and which flow of a band is the longest or holds most bytes. Pure."""

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

from epp.request.body import header_bytes
from epp.request.inference_request import InferenceRequest
from epp.scheduling.waiting import WaitingRequest


def bytes_held(request: InferenceRequest) -> int:
    """Its body and its headers."""
    return request.body_size + header_bytes(request.headers)


class QueuedRequest:
    """`arrived_at`: seconds of the picker's clock. `ttl`: seconds that it may wait while the pool has endpoints; 0: no limit.

    `expected`: seconds that a worker is expected to take for its first byte, negative: not known. `size`: bytes that it holds.
    `rank`: what the ordering policy of its band made of it. `sequence`: its place in the order of arrival. `waiting`: learns
    that it goes; set by the controller.
    """

    __slots__ = ("arrived_at", "expected", "rank", "request", "sequence", "size", "ttl", "waiting")

    def __init__(self, request: InferenceRequest, arrived_at: float, ttl: float, sequence: int) -> None:
        self.request = request
        self.arrived_at = arrived_at
        self.ttl = ttl
        self.size = bytes_held(request)
        self.sequence = sequence
        self.rank = 0.0
        self.expected = -1.0
        self.waiting: WaitingRequest


_SLACK: Final = 16
"""Entries that a heap may hold besides twice those that wait, or twice the flows, before it is made anew."""


class FlowQueue:
    """An `epp.flow_control.fairness.Flow`: a heap, in which what left stays until it comes to the top."""

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


class LargestFlow:
    """Learns when a flow grew. A heap: a flow stands at least as high as its size says, and sinks when it is looked at."""

    def __init__(self, size: Callable[[FlowQueue], int]) -> None:
        self._size = size
        self._heap: list[tuple[int, str, int, FlowQueue]] = []
        self._pushed = 0

    def grew(self, flow: FlowQueue, flows: int) -> None:
        """`flows`: how many there are now."""
        self._pushed += 1
        heappush(self._heap, (-self._size(flow), flow.fairness_id, self._pushed, flow))
        if len(self._heap) > 2 * flows + _SLACK:
            lasting = {flow: pushed for _, _, pushed, flow in self._heap if len(flow)}
            self._heap = [(-self._size(one), one.fairness_id, pushed, one) for one, pushed in lasting.items()]
            heapify(self._heap)

    def find(self) -> FlowQueue | None:
        """The largest, of equal ones the first by name; None: nobody waits."""
        heap = self._heap
        while heap:
            size, name, pushed, flow = heap[0]
            if not len(flow):
                heappop(heap)
            elif -size != self._size(flow):
                heapreplace(heap, (-self._size(flow), name, pushed, flow))
            else:
                return flow
        return None
