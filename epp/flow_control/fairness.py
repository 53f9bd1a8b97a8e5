"""Which flow of a priority band goes next. Pure."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final, Protocol

from epp.flow_control.flow_queue import QueuedRequest
from epp.plugins.declaration import Role, without_parameters


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

    It learns of each change, so that a dispatch need not look at all flows: 10,000 may wait, each in a flow of its own.
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
    """A heap of the first requests of all flows. One that is no longer first stays in it until it comes to the top."""

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
        """Earlier turns do not matter here."""

    def _rebuild(self) -> None:
        firsts = [(flow.first, flow) for flow in self._waiting]
        self._heads = [(head.rank, head.sequence, head, flow) for head, flow in firsts if head is not None]
        heapify(self._heads)


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """The Go picker's round-robin-fairness-policy: one request of each flow that waits, in the order of their fairness ids.

    Where the Go picker begins again with the first id (the last flow is gone, or nothing waits for a moment), this goes on
    behind the last one: otherwise the first ids would get more than their share.
    """

    @property
    def shares_places(self) -> bool:  # as that of GlobalStrict
        return True

    def selector(self) -> FlowSelector:
        return _Turns()


class _Turns:
    """`_ids`: of the flows in which somebody waits, sorted."""

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._flows: dict[str, Flow] = {}
        self._last = ""

    def changed(self, flow: Flow) -> None:
        fairness_id = flow.fairness_id
        waits, known = flow.first is not None, fairness_id in self._flows
        if waits and not known:
            self._ids.insert(bisect_left(self._ids, fairness_id), fairness_id)
        elif known and not waits:
            del self._ids[bisect_left(self._ids, fairness_id)]
        if waits:
            self._flows[fairness_id] = flow
        else:
            self._flows.pop(fairness_id, None)

    def select(self) -> Flow | None:
        if not self._ids:
            return None
        at = bisect_right(self._ids, self._last)
        return self._flows[self._ids[at if at < len(self._ids) else 0]]

    def dispatched(self, flow: Flow, queued: QueuedRequest) -> None:
        self._last = flow.fairness_id


GLOBAL_STRICT_FAIRNESS_POLICY: Final = without_parameters(
    "global-strict-fairness-policy", Role.FAIRNESS, GlobalStrict, is_default=True
)
ROUND_ROBIN_FAIRNESS_POLICY: Final = without_parameters(
    "round-robin-fairness-policy", Role.FAIRNESS, RoundRobin
)
