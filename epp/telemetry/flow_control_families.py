"""The metric families of flow control and of requests that wait, under the Go picker's names and words."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from adsum.histogram import Histogram
from epp.request.rejection import Rejection
from epp.scheduling.candidates import NO_ENDPOINTS
from epp.scheduling.saturation import SATURATED
from epp.scheduling.waiting import Dequeued
from epp.telemetry.labels import EXTENSION_PREFIX, PREFIX, REQUEST_LABELS, RequestLabels
from epp.telemetry.request_tally import QUEUE_BUCKETS, STEP_BUCKETS, RequestHistograms, RequestTally

DISPATCHED: Final = "Dispatched"
_ENDS: Final = {
    Dequeued.DISPATCHED: DISPATCHED,
    Dequeued.ABANDONED: "EvictedContextCancelled",
    Dequeued.REFUSED: "EvictedOther",
    Dequeued.EXPIRED: "EvictedTTL",
    Dequeued.NO_ENDPOINTS: "EvictedNoEndpoints",
}
_REFUSALS: Final = {SATURATED: "RejectedCapacity", NO_ENDPOINTS: "RejectedNoEndpoints"}
_QUEUE_LABELS: Final = (*REQUEST_LABELS, "inference_pool")
_QUEUED: Final = "NotYetFinalized"
"""The Go picker's outcome of a request that was queued."""


class FlowControlTally:
    """What flow control did with requests: numbers by outcome and priority, and how long its turns took.

    `enabled`: it is on, so that each request passes it. Priorities are the operator's, so their number is bounded.
    """

    __slots__ = ("enabled", "outcomes", "turns")

    def __init__(self) -> None:
        self.enabled = False
        self.outcomes: dict[tuple[str, int], int] = {}
        self.turns = Histogram(STEP_BUCKETS)

    def count(self, outcome: str, priority: int) -> None:
        key = outcome, priority
        self.outcomes[key] = self.outcomes.get(key, 0) + 1

    def dequeued(self, how: Dequeued, priority: int) -> None:
        """A request left the queue; one that goes is counted at its pick."""
        if how is not Dequeued.DISPATCHED:
            self.count(_ENDS[how], priority)

    def turned_away(self, rejection: Rejection, priority: int) -> None:
        self.count(_REFUSALS.get(rejection.reason or "", "RejectedOther"), priority)

    def families(self, pool_name: str) -> Iterator[Metric]:
        total = CounterMetricFamily(
            PREFIX + "flow_control_requests",
            "Requests that passed flow control, by what became of them.",
            labels=("outcome", "priority", "inference_pool"),
        )
        for (outcome, priority), count in self.outcomes.copy().items():
            total.add_metric((outcome, str(priority), pool_name), count)
        yield total
        for prefix in (PREFIX, EXTENSION_PREFIX):
            turns = HistogramMetricFamily(
                prefix + "flow_control_dispatch_cycle_duration_seconds",
                "One turn of flow control: all that go, and all whose time is up.",
            )
            turns.add_metric((), self.turns.buckets(), self.turns.total)
            yield turns


def queue_families(
    tallies: Mapping[RequestLabels, RequestTally], counted: Sequence[RequestHistograms], pool_name: str
) -> Iterator[Metric]:
    """Who waits, how long requests waited, and how long it took to queue them."""
    for prefix in (PREFIX, EXTENSION_PREFIX):
        size = GaugeMetricFamily(
            prefix + "flow_control_queue_size", "Requests that wait for admission.", labels=_QUEUE_LABELS
        )
        held = GaugeMetricFamily(
            prefix + "flow_control_queue_bytes", "Bytes of their bodies.", labels=_QUEUE_LABELS
        )
        for tally in tallies.values():
            if tally.queued or _have_waited(tally.histograms):
                size.add_metric((*tally.labels, pool_name), tally.queued)
                held.add_metric((*tally.labels, pool_name), tally.queued_bytes)
        waits = HistogramMetricFamily(
            prefix + "flow_control_request_queue_duration_seconds",
            "From the complete request to the end of its wait, by how it ended.",
            labels=(*_QUEUE_LABELS, "outcome"),
        )
        for histograms in counted:
            for outcome, buckets, total in _waits(histograms):
                waits.add_metric((*histograms.labels, pool_name, outcome), buckets, total)
        yield from (size, held, waits)
        yield _enqueue_family(prefix, counted)


def _have_waited(histograms: RequestHistograms) -> bool:
    return bool(histograms.waits) or histograms.at_once > 0


def _waits(counted: RequestHistograms) -> list[tuple[str, list[tuple[str, int]], float]]:
    """Outcome, buckets and sum. Requests that went at once waited 0 s."""
    at_once = max(0, counted.at_once)
    found = []
    histograms = counted.waits.copy()
    if at_once and Dequeued.DISPATCHED not in histograms:
        histograms[Dequeued.DISPATCHED] = Histogram(QUEUE_BUCKETS)
    for how, histogram in histograms.items():
        more = at_once if how is Dequeued.DISPATCHED else 0
        buckets = [(bound, count + more) for bound, count in histogram.buckets()]
        found.append((_ENDS[how], buckets, histogram.total))
    return found


def _enqueue_family(prefix: str, counted: Sequence[RequestHistograms]) -> Metric:
    family = HistogramMetricFamily(
        prefix + "flow_control_request_enqueue_duration_seconds",
        "From the complete request to its place in the queue.",
        labels=("fairness_id", "priority", "outcome"),
    )
    sums: dict[tuple[str, str], Histogram] = {}
    for one in counted:
        if one.enqueued is not None:
            sums.setdefault((one.labels[2], one.labels[3]), Histogram(STEP_BUCKETS)).add(one.enqueued)
    for (fairness_id, priority), histogram in sums.items():
        family.add_metric((fairness_id, priority, _QUEUED), histogram.buckets(), histogram.total)
    return family
