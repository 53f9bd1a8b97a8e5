"""Counts requests, errors, durations and waits under the Go picker's metric names (its docs/metrics.md)."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from epp.ext_proc.request_director import Deferral, RequestDirector
from epp.request.inference_request import InferenceRequest
from epp.request.own_answer import OwnAnswer
from epp.request.rejection import Rejection
from epp.request.subset import Subset
from epp.scheduling.pick import Pick
from epp.scheduling.waiting import Dequeued
from runtime.histogram import Histogram

PREFIX = "llm_d_epp_"
REQUEST_LABELS = ("model_name", "target_model_name", "fairness_id", "priority")
LABEL_SETS: Final = 1000
"""Distinct sets of labels that clients can create; later ones are counted under "other"."""
UNUSED_AFTER: Final = 3600.0
"""Seconds without a request after which a set of labels is dropped."""
UNUSED_AFTER_AT_LIMIT: Final = 300.0
"""The same while there are LABEL_SETS, to make room for new ones."""
_SWEEP_INTERVAL: Final = 10.0
_MAX_LABEL: Final = 256
"""Characters."""
OTHER: Final = "other"

# Control characters, Unicode's line and paragraph separators, and lone surrogates, which UTF-8 cannot encode. The text
# format 0.0.4 escapes the newline, the backslash and the quote only, but some parsers split lines at the others: a client
# could inject samples.
_UNSAFE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

_DURATIONS = (
    0.005,
    0.025,
    0.05,
    0.1,
    0.2,
    0.4,
    0.6,
    0.8,
    1,
    1.25,
    1.5,
    2,
    3,
    4,
    5,
    6,
    8,
    10,
    15,
    20,
    30,
    45,
    60,
)
_REQUEST_BUCKETS = (*_DURATIONS, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600)
_SCHEDULER_BUCKETS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
_QUEUE_BUCKETS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_QUEUE_LABELS = (*REQUEST_LABELS, "inference_pool")
_OUTCOMES = {
    Dequeued.DISPATCHED: "Dispatched",
    Dequeued.ABANDONED: "EvictedContextCancelled",
    Dequeued.REFUSED: "EvictedOther",
    Dequeued.EXPIRED: "EvictedTTL",
}
"""The Go picker's names."""
_ERROR_CODES = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    412: "PreconditionFailed",
    413: "PayloadTooLarge",
    429: "ResourceExhausted",
    503: "ServiceUnavailable",
}


Labels = tuple[str, str, str, str]
"""The values of REQUEST_LABELS."""


class _RequestTally:
    """The counts of one set of labels. `used_at`: when its last request came, in seconds.

    `queued`, `queued_bytes`: requests that wait for admission. `waits`: durations of past waits, by outcome.
    """

    __slots__ = (
        "durations",
        "errors",
        "labels",
        "queued",
        "queued_bytes",
        "requests",
        "running",
        "used_at",
        "waits",
    )

    def __init__(self, labels: Labels) -> None:
        self.labels = labels
        self.used_at = 0.0
        self.requests = 0
        self.running = 0
        self.errors: dict[str, int] = {}
        self.durations: Histogram | None = None
        self.queued = 0
        self.queued_bytes = 0
        self.waits: dict[Dequeued, Histogram] = {}

    def fail(self, code: str) -> None:
        self.errors[code] = self.errors.get(code, 0) + 1


class Telemetry:
    """Counts in plain numbers, which become metrics when the page is read.

    An `epp.ext_proc.request_director.Observer` and an `epp.scheduling.waiting.QueueObserver`. The families of the queue
    are shown from the first request that waits. `registry` may be read in any thread. `pool_name`: the InferencePool.
    """

    def __init__(self, label_sets: int = LABEL_SETS, pool_name: str = "") -> None:
        self.registry = CollectorRegistry()
        self._limit = label_sets
        self._pool_name = pool_name
        self._queued: dict[InferenceRequest, _RequestTally] = {}
        """The requests that wait, with the tally that counted them."""
        self._anything_queued = False
        self._tallies: dict[Labels, _RequestTally] = {}
        self._shortcuts: dict[tuple[str | None, str, str, int], _RequestTally] = {}
        """By `rewritten_from`, model, fairness id and priority; only tallies whose labels have these values unchanged."""
        self._swept_at = 0.0
        self._scheduler = Histogram(_SCHEDULER_BUCKETS)
        self.registry.register(self)

    def picked(self, pick: Pick, now: float) -> None:
        if now - self._swept_at >= _SWEEP_INTERVAL:
            self._sweep(now)
        tally = self._tally(pick)
        tally.used_at = now
        tally.requests += 1
        tally.running += 1

    def rejected(self, rejection: Rejection, now: float) -> None:
        """Count an error. The labels stay empty: the values of a rejected request cannot be trusted."""
        tally = self._tallies.get(_NO_LABELS) or self._tallies.setdefault(
            _NO_LABELS, _RequestTally(_NO_LABELS)
        )
        tally.requests += 1
        tally.fail(_ERROR_CODES.get(rejection.status, "Internal"))

    def responded(self, pick: Pick, status: int, now: float) -> None:
        """Count an answer of 400 or more."""
        if status >= 400:
            self._tally(pick).fail("ModelServerError")

    def released(self, pick: Pick, started: float, now: float) -> None:
        tally = self._tally(pick)
        tally.running -= 1
        if tally.durations is None:
            tally.durations = Histogram(_REQUEST_BUCKETS)
        tally.durations.observe(max(0.0, now - started))

    def queued(self, request: InferenceRequest, now: float) -> None:
        self._anything_queued = True
        tally = self._queued[request] = self._tally_of(request)
        tally.used_at = now
        tally.queued += 1
        tally.queued_bytes += request.body_size

    def dequeued(self, request: InferenceRequest, how: Dequeued, waited: float, now: float) -> None:
        tally = self._queued.pop(request)
        tally.queued -= 1
        tally.queued_bytes -= request.body_size
        durations = tally.waits.get(how)
        if durations is None:
            durations = tally.waits[how] = Histogram(_QUEUE_BUCKETS)
        durations.observe(waited)

    def scheduled(self, seconds: float) -> None:
        """Observe the duration of one pick."""
        self._scheduler.observe(seconds)

    def collect(self) -> Iterator[Metric]:
        """The current numbers as metric families; prometheus_client calls this."""
        requests = CounterMetricFamily(PREFIX + "request", "Requests.", labels=REQUEST_LABELS)
        errors = CounterMetricFamily(
            PREFIX + "request_error",
            "Requests that the picker refused or the worker answered with 400 or more.",
            labels=(*REQUEST_LABELS, "error_code"),
        )
        running = GaugeMetricFamily(
            PREFIX + "request_running", "Requests whose stream is open.", labels=REQUEST_LABELS
        )
        durations = HistogramMetricFamily(
            PREFIX + "request_duration_seconds",
            "From the request's headers to the end of its stream.",
            labels=REQUEST_LABELS,
        )
        for labels, tally in self._tallies.copy().items():
            requests.add_metric(labels, tally.requests)
            for code, count in tally.errors.copy().items():
                errors.add_metric((*labels, code), count)
            if labels != _NO_LABELS:
                running.add_metric(labels, tally.running)
            if tally.durations is not None:
                durations.add_metric(labels, tally.durations.buckets(), tally.durations.total)
        scheduler = HistogramMetricFamily(
            PREFIX + "scheduler_e2e_duration_seconds", "From the complete request to the pick."
        )
        scheduler.add_metric((), self._scheduler.buckets(), self._scheduler.total)
        yield from (requests, errors, running, durations, scheduler)
        if self._anything_queued:
            yield from self._collect_queues()

    def _collect_queues(self) -> Iterator[Metric]:
        size = GaugeMetricFamily(
            PREFIX + "flow_control_queue_size", "Requests that wait for admission.", labels=_QUEUE_LABELS
        )
        held = GaugeMetricFamily(
            PREFIX + "flow_control_queue_bytes", "Bytes of their bodies.", labels=_QUEUE_LABELS
        )
        durations = HistogramMetricFamily(
            PREFIX + "flow_control_request_queue_duration_seconds",
            "From the complete request to the end of its wait, by how it ended.",
            labels=(*_QUEUE_LABELS, "outcome"),
        )
        for tally in self._tallies.copy().values():
            waits = tally.waits.copy()
            if not waits and not tally.queued:
                continue
            labels = (*tally.labels, self._pool_name)
            size.add_metric(labels, tally.queued)
            held.add_metric(labels, tally.queued_bytes)
            for how, waited in waits.items():
                durations.add_metric((*labels, _OUTCOMES[how]), waited.buckets(), waited.total)
        yield from (size, held, durations)

    def _tally(self, pick: Pick) -> _RequestTally:
        """The tally that counted the pick first, so that every gauge returns to 0."""
        tally = pick.observer_state
        if not isinstance(tally, _RequestTally):
            pick.observer_state = tally = self._tally_of(pick.request)
        return tally

    def _tally_of(self, request: InferenceRequest) -> _RequestTally:
        named, model, fairness_id = request.rewritten_from, request.model, request.fairness_id
        found = self._shortcuts.get((named, model, fairness_id, request.priority))
        return found or self._tally_of_labels(request)

    def _tally_of_labels(self, request: InferenceRequest) -> _RequestTally:
        """The tally of these values. Beyond the limit only the priority is kept: clients do not choose that."""
        named, model, fairness_id = request.rewritten_from, request.model, request.fairness_id
        values = (model if named is None else named, model, fairness_id)
        labels = (
            label_value(values[0]),
            label_value(values[1]),
            label_value(values[2]),
            str(request.priority),
        )
        unchanged = labels[:3] == values
        if labels not in self._tallies and len(self._tallies) >= self._limit:
            unchanged, labels = False, (OTHER, OTHER, OTHER, labels[-1])
        tally = self._tallies.get(labels) or self._tallies.setdefault(labels, _RequestTally(labels))
        if unchanged:
            self._shortcuts[named, model, fairness_id, request.priority] = tally
        return tally

    def _sweep(self, now: float) -> None:
        """Drop unused tallies. Called on the event loop; pages are read in other threads, hence the new dicts."""
        self._swept_at = now
        unused = now - (UNUSED_AFTER_AT_LIMIT if len(self._tallies) >= self._limit else UNUSED_AFTER)
        kept = {
            labels: tally
            for labels, tally in self._tallies.items()
            if tally.running > 0
            or tally.queued > 0
            or tally.used_at > unused
            or labels[1] == OTHER
            or labels == _NO_LABELS
        }
        if len(kept) < len(self._tallies):
            self._tallies = kept
            self._shortcuts = {key: tally for key, tally in self._shortcuts.items() if tally.labels in kept}


_NO_LABELS: Final = ("", "", "", "")


@dataclass(frozen=True, slots=True)
class TimedDirector:
    """Times the picks of another RequestDirector, except rejections and deferred picks. `clock` returns seconds."""

    director: RequestDirector
    scheduled: Callable[[float], None]
    clock: Callable[[], float]

    def direct(
        self,
        headers: Mapping[str, str],
        body: bytes | bytearray | memoryview | None,
        subset: Subset | None,
        now: float,
    ) -> Pick | Deferral | OwnAnswer:
        started = self.clock()
        outcome = self.director.direct(headers, body, subset, now)
        if isinstance(outcome, Pick):
            self.scheduled(self.clock() - started)
        return outcome

    def served(self, pick: Pick, destination: str, now: float) -> None:
        self.director.served(pick, destination, now)

    def responded(self, pick: Pick, status: int, now: float) -> None:
        self.director.responded(pick, status, now)

    def disconnected(self, pick: Pick, now: float) -> None:
        self.director.disconnected(pick, now)

    def release(self, pick: Pick, now: float) -> None:
        self.director.release(pick, now)


def label_value(value: str) -> str:
    """A client's text as the value of a label: without characters that end a line; `OTHER` if it is too long."""
    if len(value) > _MAX_LABEL:
        return OTHER
    return value if value.isprintable() else _UNSAFE.sub("", value)
