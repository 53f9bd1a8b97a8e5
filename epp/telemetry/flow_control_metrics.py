"""The metrics of the queues of flow control: their lengths, waits, bands, programs, and what was taken back from workers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from adsum.histogram import Histogram
from adsum.metric_families import counter, gauge, histogram
from epp.endpoints.endpoint import EndpointPool
from epp.flow_control.bands import Band
from epp.flow_control.controller import FlowController
from epp.flow_control.eviction import InFlightEviction
from epp.plugins.labels import EXTENSION_PREFIX, PREFIX, REQUEST_LABELS, RequestLabels
from epp.request.rejection import Rejection
from epp.scheduling.candidates import NO_ENDPOINTS
from epp.scheduling.saturation import SATURATED, StalenessAware
from epp.scheduling.waiting import Dequeued
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
    """The requests that flow control let go or refused: numbers by outcome and priority, and how long its turns took.

    `enabled`: it is on, so that each request passes it. Priorities are the operator's, so their number is bounded.
    """

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
        outcomes = self.outcomes.copy().items()
        yield counter(
            PREFIX + "flow_control_requests",
            "Requests that passed flow control, by what became of them.",
            ("outcome", "priority", "inference_pool"),
            [((outcome, str(priority), pool_name), count) for (outcome, priority), count in outcomes],
        )
        for prefix in (PREFIX, EXTENSION_PREFIX):
            yield histogram(
                prefix + "flow_control_dispatch_cycle_duration_seconds",
                "One turn of flow control: all that go, and all whose time is up.",
                of=self.turns,
            )


def queue_families(
    tallies: Mapping[RequestLabels, RequestTally], counted: Sequence[RequestHistograms], pool_name: str
) -> Iterator[Metric]:
    """How many requests wait, how long requests waited, and how long it took to queue them."""
    queued = [
        one for one in tallies.values() if one.queued or one.histograms.waits or one.histograms.at_once > 0
    ]
    sizes = [((*one.labels, pool_name), one.queued) for one in queued]
    held = [((*one.labels, pool_name), one.queued_bytes) for one in queued]
    for prefix in (PREFIX, EXTENSION_PREFIX):
        name = prefix + "flow_control_queue_"
        yield gauge(name + "size", "Requests that wait for admission.", _QUEUE_LABELS, sizes)
        yield gauge(name + "bytes", "Bytes of their bodies.", _QUEUE_LABELS, held)
        waits = HistogramMetricFamily(
            prefix + "flow_control_request_queue_duration_seconds",
            "From the complete request to the end of its wait, by how it ended.",
            labels=(*_QUEUE_LABELS, "outcome"),
        )
        for histograms in counted:
            for outcome, buckets, total in _waits(histograms):
                waits.add_metric((*histograms.labels, pool_name, outcome), buckets, total)
        yield waits
        yield _enqueue_family(prefix, counted)


def _waits(counted: RequestHistograms) -> list[tuple[str, list[tuple[str, int]], float]]:
    """Outcome, buckets and sum. Requests that went at once waited 0 s."""
    at_once = max(0, counted.at_once)
    found = []
    histograms = counted.waits.copy()
    if at_once and Dequeued.DISPATCHED not in histograms:
        histograms[Dequeued.DISPATCHED] = Histogram(QUEUE_BUCKETS)
    for how, waited in histograms.items():
        more = at_once if how is Dequeued.DISPATCHED else 0
        buckets = [(bound, count + more) for bound, count in waited.buckets()]
        found.append((_ENDS[how], buckets, waited.total))
    return found


def _enqueue_family(prefix: str, counted: Sequence[RequestHistograms]) -> Metric:
    sums: dict[tuple[str, str, str], Histogram] = {}
    for one in counted:
        if one.enqueued is not None:
            sums.setdefault((*one.labels[2:], _QUEUED), Histogram(STEP_BUCKETS)).add(one.enqueued)
    return histogram(
        prefix + "flow_control_request_enqueue_duration_seconds",
        "From the complete request to its place in the queue.",
        ("fairness_id", "priority", "outcome"),
        sums.items(),
    )


@dataclass(frozen=True, slots=True)
class BandGauges(Collector):
    """`controller` None: flow control is off, and there is nothing to show. `pool`: all endpoints, as of now.

    `detector`: the name of the saturation detector's plugin.
    """

    pool_name: str
    controller: Callable[[], FlowController | None]
    pool: Callable[[], EndpointPool]
    detector: Callable[[], str]

    def collect(self) -> Iterator[Metric]:
        controller = self.controller()
        if controller is None:
            return
        bands, settings = controller.bands, controller.settings
        yield self._of_bands(bands, "requests", lambda band: len(band.waiting) / band.settings.max_requests)
        yield self._of_bands(bands, "bytes", lambda band: band.bytes / band.settings.max_bytes)
        if settings.max_requests is not None:
            waiting = sum(len(band.waiting) for band in bands)
            yield self._of_all("requests", waiting / settings.max_requests)
        if settings.max_bytes is not None:
            yield self._of_all("bytes", sum(band.bytes for band in bands) / settings.max_bytes)
        if isinstance(controller.detector, StalenessAware):
            yield gauge(
                PREFIX + "flow_control_stale_endpoints",
                "Endpoints whose numbers are older than metricsStalenessThreshold, or unknown.",
                ("detector",),
                [((self.detector(),), controller.detector.stale(self.pool()))],
            )

    def _of_bands(self, bands: Sequence[Band], what: str, share: Callable[[Band], float]) -> Metric:
        return gauge(
            f"{PREFIX}flow_control_capacity_utilization_{what}",
            f"The share of a priority's limit in {what} that waits.",
            ("priority", "inference_pool"),
            [((str(band.priority), self.pool_name), share(band)) for band in bands],
        )

    def _of_all(self, what: str, share: float) -> Metric:
        return gauge(
            f"{PREFIX}flow_control_global_capacity_utilization_{what}",
            f"The share of the limit in {what} of all priorities together that waits.",
            ("inference_pool",),
            [((self.pool_name,), share)],
        )


_PREFIX = PREFIX + "flow_control_"


@dataclass(frozen=True, slots=True)
class RevocationMetrics(Collector):
    """`eviction` None: requests in flight are not taken back, and there is nothing to show."""

    pool_name: str
    eviction: Callable[[], InFlightEviction | None]
    clock: Callable[[], float]

    def collect(self) -> Iterator[Metric]:
        eviction = self.eviction()
        if eviction is None:
            return
        found, pool = eviction.revocations, self.pool_name
        yield counter(
            _PREFIX + "revocations_issued",
            "Requests that were taken back, by the priority that needed room.",
            ("priority", "inference_pool"),
            [((str(priority), pool), count) for priority, count in found.issued.items()],
        )
        yield counter(
            _PREFIX + "revocations",
            "The same, by what became of them.",
            ("outcome", "inference_pool"),
            [(("confirmed", pool), found.confirmed), (("timed_out", pool), found.timed_out)],
        )
        yield histogram(
            _PREFIX + "revocation_confirmation_seconds",
            "Until the stream of such a request ended.",
            ("inference_pool",),
            [((pool,), found.durations)],
        )
        yield self._gauge("reclaim_target", "What the last decision wanted to free.", found.target)
        pending = eviction.pending(self.clock())
        yield self._gauge("pending_reclaim", "What was taken back and is not known to be free.", pending)

    def _gauge(self, name: str, help_text: str, value: float) -> Metric:
        help_text = f"{help_text} As a part of the saturation."
        return gauge(_PREFIX + name, help_text, ("inference_pool",), [((self.pool_name,), value)])
