"""What the metrics page says of the queues of flow control: their lengths, waits, bands, programs, and what was taken back from workers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from adsum.histogram import Histogram
from epp.endpoints.endpoint import EndpointPool
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
    """What flow control did with requests: numbers by outcome and priority, and how long its turns took.

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
    """How many requests wait, how long requests waited, and how long it took to queue them."""
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


class BandGauges(Collector):
    """`controller` None: flow control is off, and there is nothing to show. `pool`: all endpoints, as of now.

    `detector`: the name of the saturation detector's plugin.
    """

    def __init__(
        self,
        pool_name: str,
        controller: Callable[[], FlowController | None],
        pool: Callable[[], EndpointPool],
        detector: Callable[[], str],
    ) -> None:
        self._pool_name = pool_name
        self._controller = controller
        self._pool = pool
        self._detector = detector

    def collect(self) -> Iterator[Metric]:
        controller = self._controller()
        if controller is None:
            return
        bands, settings = controller.bands, controller.settings
        requests, held = (self._of_bands(name) for name in ("requests", "bytes"))
        for band in bands:
            labels = (str(band.priority), self._pool_name)
            requests.add_metric(labels, len(band.waiting) / band.settings.max_requests)
            held.add_metric(labels, band.bytes / band.settings.max_bytes)
        yield from (requests, held)
        if settings.max_requests is not None:
            waiting = sum(len(band.waiting) for band in bands)
            yield self._of_all("requests", waiting / settings.max_requests)
        if settings.max_bytes is not None:
            yield self._of_all("bytes", sum(band.bytes for band in bands) / settings.max_bytes)
        if isinstance(controller.detector, StalenessAware):
            stale = GaugeMetricFamily(
                PREFIX + "flow_control_stale_endpoints",
                "Endpoints whose numbers are older than metricsStalenessThreshold, or unknown.",
                labels=("detector",),
            )
            stale.add_metric((self._detector(),), controller.detector.stale(self._pool()))
            yield stale

    def _of_bands(self, what: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(
            f"{PREFIX}flow_control_capacity_utilization_{what}",
            f"The share of a priority's limit in {what} that waits.",
            labels=("priority", "inference_pool"),
        )

    def _of_all(self, what: str, share: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(
            f"{PREFIX}flow_control_global_capacity_utilization_{what}",
            f"The share of the limit in {what} of all priorities together that waits.",
            labels=("inference_pool",),
        )
        family.add_metric((self._pool_name,), share)
        return family


_PREFIX = PREFIX + "flow_control_"


class RevocationMetrics(Collector):
    """`eviction` None: requests in flight are not taken back, and there is nothing to show."""

    def __init__(
        self, pool_name: str, eviction: Callable[[], InFlightEviction | None], clock: Callable[[], float]
    ) -> None:
        self._pool_name = pool_name
        self._eviction = eviction
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        eviction = self._eviction()
        if eviction is None:
            return
        found = eviction.revocations
        issued = CounterMetricFamily(
            _PREFIX + "revocations_issued",
            "Requests that were taken back, by the priority that needed room.",
            labels=("priority", "inference_pool"),
        )
        for priority, count in found.issued.items():
            issued.add_metric((str(priority), self._pool_name), count)
        ended = CounterMetricFamily(
            _PREFIX + "revocations", "The same, by what became of them.", labels=("outcome", "inference_pool")
        )
        ended.add_metric(("confirmed", self._pool_name), found.confirmed)
        ended.add_metric(("timed_out", self._pool_name), found.timed_out)
        seconds = HistogramMetricFamily(
            _PREFIX + "revocation_confirmation_seconds",
            "Until the stream of such a request ended.",
            labels=("inference_pool",),
        )
        seconds.add_metric((self._pool_name,), found.durations.buckets(), found.durations.total)
        yield from (issued, ended, seconds)
        yield self._gauge("reclaim_target", "What the last decision wanted to free.", found.target)
        pending = eviction.pending(self._clock())
        yield self._gauge("pending_reclaim", "What was taken back and is not known to be free.", pending)

    def _gauge(self, name: str, help_text: str, value: float) -> Metric:
        family = GaugeMetricFamily(
            _PREFIX + name, f"{help_text} As a part of the saturation.", labels=("inference_pool",)
        )
        family.add_metric((self._pool_name,), value)
        return family
