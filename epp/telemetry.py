"""What the picker counts, under the names that the Go picker uses (its docs/metrics.md), in a registry of its own."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from epp.directing import Deferral, Directing
from epp.director import Pick
from epp.endpoint import EndpointPool
from epp.protocol import Rejection, Subset

PREFIX = "llm_d_epp_"
REQUEST_LABELS = ("model_name", "target_model_name", "fairness_id", "priority")
LABEL_SETS = 1000
"""Distinct sets of labels that clients can make; what comes later is counted under "other"."""
LABEL_LENGTH = 256
"""Characters of a label's value; a longer one is "other"."""

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


class _Capped:
    """The first `limit` different sets as they are, of all others the priority only: clients do not choose that."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._seen: set[Labels] = set()

    def __call__(self, labels: Labels) -> Labels:
        if labels in self._seen:
            return labels
        if len(self._seen) >= self._limit:
            return ("other", "other", "other", labels[-1])
        self._seen.add(labels)
        return labels


class Telemetry:
    """An `epp.directing.Observer` that counts; `registry` is what a metrics page shows."""

    def __init__(self, label_sets: int = LABEL_SETS) -> None:
        self.registry = CollectorRegistry()
        self._capped = _Capped(label_sets)

        def named(name: str) -> str:
            return PREFIX + name

        self._requests = Counter(named("request"), "Requests.", REQUEST_LABELS, registry=self.registry)
        self._errors = Counter(
            named("request_error"),
            "Requests that the picker refused or the worker answered with 400 or more.",
            (*REQUEST_LABELS, "error_code"),
            registry=self.registry,
        )
        self._running = Gauge(
            named("request_running"), "Requests whose stream is open.", REQUEST_LABELS, registry=self.registry
        )
        self._duration = Histogram(
            named("request_duration_seconds"),
            "From the request's headers to the end of its stream.",
            REQUEST_LABELS,
            buckets=_REQUEST_BUCKETS,
            registry=self.registry,
        )
        self._scheduler = Histogram(
            named("scheduler_e2e_duration_seconds"),
            "From the complete request to the pick.",
            buckets=_SCHEDULER_BUCKETS,
            registry=self.registry,
        )

    def picked(self, pick: Pick, now: float) -> None:
        """Count it, and count it as running."""
        labels = self._labels(pick)
        self._requests.labels(*labels).inc()
        self._running.labels(*labels).inc()

    def rejected(self, rejection: Rejection, now: float) -> None:
        """Count it as an error; whose request it was is not known to be sound, so the labels stay empty."""
        labels = ("", "", "", "")
        self._requests.labels(*labels).inc()
        self._errors.labels(*labels, _ERROR_CODES.get(rejection.status, "Internal")).inc()

    def responded(self, pick: Pick, status: int, now: float) -> None:
        """Count an answer of 400 or more."""
        if status >= 400:
            self._errors.labels(*self._labels(pick), "ModelServerError").inc()

    def released(self, pick: Pick, started: float, now: float) -> None:
        """It runs no more."""
        labels = self._labels(pick)
        self._running.labels(*labels).dec()
        self._duration.labels(*labels).observe(max(0.0, now - started))

    def scheduled(self, seconds: float) -> None:
        """How long one pick took."""
        self._scheduler.observe(seconds)

    def _labels(self, pick: Pick) -> Labels:
        request = pick.request
        model = _short(request.model)
        return self._capped((model, model, _short(request.fairness_id), str(request.priority)))


def _short(value: str) -> str:
    return value if len(value) <= LABEL_LENGTH else "other"


@dataclass(frozen=True, slots=True)
class TimedDirector:
    """A director whose picks are timed; a rejection is no pick. `clock` gives seconds."""

    director: Directing
    scheduled: Callable[[float], None]
    clock: Callable[[], float]

    def direct(
        self,
        headers: Mapping[str, str],
        body: bytes | bytearray | memoryview | None,
        subset: Subset | None,
        now: float,
    ) -> Pick | Deferral:
        """As the director does; its exceptions pass."""
        started = self.clock()
        outcome = self.director.direct(headers, body, subset, now)
        self.scheduled(self.clock() - started)
        return outcome

    def served(self, pick: Pick, destination: str, now: float) -> None:
        """As the director does."""
        self.director.served(pick, destination, now)

    def release(self, pick: Pick, now: float) -> None:
        """As the director does."""
        self.director.release(pick, now)


@dataclass(frozen=True, slots=True)
class PoolGauges(Collector):
    """Gauges of the whole pool, computed when somebody looks.

    Averages are over the endpoints whose metrics are fresh within `stale_after` seconds. `name` is the pool's.
    """

    name: str
    pool: Callable[[], EndpointPool]
    saturation: Callable[[], float]
    stale_after: float

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """The families, each with one sample."""
        pool = self.pool()
        ready = float(sum(endpoint.reachable for endpoint in pool.endpoints))
        fresh = pool.fresh(self.stale_after)
        yield self._gauge(PREFIX + "ready_endpoints", "Endpoints that can be reached.", ready)
        yield self._gauge(
            "inference_pool_ready_pods",
            "Endpoints that can be reached, under the name of the Gateway API Inference Extension.",
            ready,
        )
        for name, help_text, column in (
            ("average_queue_size", "Requests waiting in a worker, on average.", pool.waiting),
            ("average_running_requests", "Requests running in a worker, on average.", pool.running),
            ("average_kv_cache_utilization", "KV cache use, 0 to 1, on average.", pool.kv_usage),
        ):
            values = np.asarray(column)[fresh]
            yield self._gauge(PREFIX + name, help_text, float(np.nanmean(values)) if len(values) else 0.0)
        saturation = GaugeMetricFamily(
            PREFIX + "flow_control_pool_saturation", "1.0 is full.", labels=("inference_pool", "stage")
        )
        saturation.add_metric((self.name, ""), self.saturation())
        yield saturation

    def _gauge(self, name: str, help_text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, help_text, labels=("name",))
        family.add_metric((self.name,), value)
        return family
