"""Which flow of a band is the longest, without a look at all of them. Pure."""

from epp.flow_control.flow_queue import FlowQueue


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
