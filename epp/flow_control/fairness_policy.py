"""Which flow of a priority band goes next. Pure."""

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Protocol

from epp.flow_control.queued_request import QueuedRequest


class Flow(Protocol):
    """The requests of one priority and one fairness id that wait; compared by identity."""

    @property
    def fairness_id(self) -> str: ...

    @property
    def first(self) -> QueuedRequest | None:
        """The one that goes next, by the ordering policy; None: none waits."""

    def __len__(self) -> int:
        """How many of its requests wait."""


class FlowSelector(Protocol):
    """Which flow goes next, for one band: it keeps what the policy remembers.

    It is told of each change, so that a dispatch need not look at all flows: 10,000 may wait, each in a flow of its own.
    """

    def changed(self, flow: Flow) -> None:
        """Another request is first in this flow, or none is any more (`flow.first` None), or one is again."""

    def select(self) -> Flow | None:
        """The flow whose first request goes next; None: none waits. Two calls in a row give the same flow."""

    def dispatched(self, flow: Flow, queued: QueuedRequest) -> None:
        """This request of the flow that `select` named goes now; `changed` follows."""


class FairnessPolicy(Protocol):
    """One object may serve many bands; the state of each is in its selector."""

    @property
    def shares_places(self) -> bool:
        """Whether a full band takes a request of a short flow in place of one of the longest flow."""

    def selector(self) -> FlowSelector:
        """A selector for a band in which nothing waits yet."""


@dataclass(frozen=True, slots=True)
class GlobalStrict:
    """The Go picker's global-strict-fairness-policy: the order of the ordering policy over all flows, as if there were one."""

    @property
    def shares_places(self) -> bool:  # a class attribute of a compiled dataclass would be one of its fields
        return False

    def selector(self) -> FlowSelector:
        return _FirstOfAll()


class _FirstOfAll:
    """A heap of the first requests of all flows. What is first no more stays in it until it comes to the top."""

    __slots__ = ("_heads", "_waiting")

    def __init__(self) -> None:
        self._heads: list[tuple[float, int, QueuedRequest, Flow]] = []
        self._waiting: dict[Flow, None] = {}

    def changed(self, flow: Flow) -> None:
        head = flow.first
        if head is None:
            self._waiting.pop(flow, None)
            return
        self._waiting[flow] = None
        heappush(self._heads, (head.rank, head.sequence, head, flow))
        if len(self._heads) > 2 * len(self._waiting) + 16:
            self._rebuild()

    def select(self) -> Flow | None:
        heads = self._heads
        while heads:
            _, _, head, flow = heads[0]
            if flow.first is head:
                return flow
            heappop(heads)
        return None

    def dispatched(self, flow: Flow, queued: QueuedRequest) -> None:
        """Who went before does not matter here."""

    def _rebuild(self) -> None:
        firsts = [(flow.first, flow) for flow in self._waiting]
        self._heads = [(head.rank, head.sequence, head, flow) for head, flow in firsts if head is not None]
        heapify(self._heads)
