"""Which flow of a band is the longest, and which holds most bytes, without a look at all of them. Pure."""

from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

from epp.flow_control.flow_queue import FlowQueue

_SLACK: Final = 16
"""Entries that a heap may hold besides twice the flows, before it is made anew."""


class FlowLengths:
    """Told of each change by one request. Of equally long flows the one that changed last is the longest."""

    __slots__ = ("_by_length", "_longest")

    def __init__(self) -> None:
        self._by_length: dict[int, dict[FlowQueue, None]] = {}
        self._longest = 0

    def grew(self, flow: FlowQueue) -> None:
        length = len(flow)
        self._take(flow, length - 1)
        self._by_length.setdefault(length, {})[flow] = None
        self._longest = max(self._longest, length)

    def shrank(self, flow: FlowQueue) -> None:
        length = len(flow)
        self._take(flow, length + 1)
        if length:
            self._by_length.setdefault(length, {})[flow] = None
        if self._longest not in self._by_length:
            self._longest = length  # it was the only one of its length

    def longest(self) -> FlowQueue | None:
        """The flow with the most requests that wait; None: nobody waits."""
        return next(reversed(self._by_length[self._longest]), None) if self._longest else None

    def _take(self, flow: FlowQueue, length: int) -> None:
        alike = self._by_length.get(length)
        if alike is not None:
            alike.pop(flow, None)
            if not alike:
                del self._by_length[length]


class FlowBytes:
    """Told when a flow grew. A heap: a flow stands at least as high as its bytes say, and sinks when it is looked at."""

    __slots__ = ("_heap", "_pushed")

    def __init__(self) -> None:
        self._heap: list[tuple[int, str, int, FlowQueue]] = []
        self._pushed = 0

    def grew(self, flow: FlowQueue, flows: int) -> None:
        """`flows`: how many there are now."""
        self._pushed += 1
        heappush(self._heap, (-flow.bytes, flow.fairness_id, self._pushed, flow))
        if len(self._heap) > 2 * flows + _SLACK:
            lasting = {flow: pushed for _, _, pushed, flow in self._heap if len(flow)}
            self._heap = [(-one.bytes, one.fairness_id, pushed, one) for one, pushed in lasting.items()]
            heapify(self._heap)

    def heaviest(self) -> FlowQueue | None:
        """The flow that holds most bytes, of equal ones the first by name; None: nobody waits."""
        heap = self._heap
        while heap:
            size, name, pushed, flow = heap[0]
            if not len(flow):
                heappop(heap)
            elif -size != flow.bytes:
                heapreplace(heap, (-flow.bytes, name, pushed, flow))
            else:
                return flow
        return None
