"""The fairness policy that lets flows take turns. Pure."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from epp.flow_control.fairness_policy import Flow, FlowSelector
from epp.flow_control.queued_request import QueuedRequest


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """The Go picker's round-robin-fairness-policy: one request of each flow that waits, in the order of their fairness ids.

    Where the Go picker begins again with the first id (the last flow is gone, or nothing waits for a moment), this goes on
    behind the last one: otherwise the first ids would get more than their share.
    """

    @property
    def shares_places(self) -> bool:
        return True

    def selector(self) -> FlowSelector:
        return _Turns()


class _Turns:
    """`_ids`: of the flows in which somebody waits, sorted."""

    __slots__ = ("_flows", "_ids", "_last")

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
