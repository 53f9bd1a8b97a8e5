"""The metrics of the pool: its endpoints, who is avoided, what is in flight, discovery and scraping."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from adsum.metric_families import Samples, counter, gauge
from discovery.watch_metrics import WatchMetric
from epp.endpoints.endpoint import EndpointPool, Floats
from epp.endpoints.worker_metrics import BUILT_IN
from epp.outliers.detection import OutlierDetection
from epp.outliers.outlier_record import Cause
from epp.plugins.labels import EXTENSION_PREFIX, POOL_PREFIX, PREFIX
from epp.scraping.scraper import ScrapeErrors


@dataclass(frozen=True, slots=True)
class PoolGauges(Collector):
    """Gauges of the whole pool and of each endpoint.

    Averages and deviations cover the endpoints whose numbers are younger than `stale_after` seconds. There are none if
    no numbers are: a dispatcher or an autoscaler would read 0 as idle. `name`: the pool's. `saturations`: by stage.
    """

    name: str
    pool: Callable[[], EndpointPool]
    saturations: Callable[[], Mapping[str, float]]
    stale_after: float

    def collect(self) -> Iterable[GaugeMetricFamily]:
        pool = self.pool()
        yield from self._pool_families(pool)
        yield from self._endpoint_families(pool)

    def _pool_families(self, pool: EndpointPool) -> Iterator[GaugeMetricFamily]:
        ready = float(pool.reachable.sum())
        fresh = pool.fresh(self.stale_after)
        yield self._gauge(PREFIX + "ready_endpoints", "Endpoints that can be reached.", ready)
        yield self._gauge(POOL_PREFIX + "ready_pods", _older("ready_endpoints"), ready)
        for metric in pool.rows:
            if metric.pool_gauge is not None:
                name, help_text = metric.pool_gauge
                known = pool.metric(metric)[fresh]
                known = known[np.isfinite(known)]
                average = float(known.mean()) if len(known) else _UNKNOWN if len(pool) else 0.0
                deviation = float(known.std(ddof=min(1, len(known) - 1))) if len(known) else average
                yield self._gauge(PREFIX + name, help_text, average)
                if metric in BUILT_IN:
                    yield self._gauge(POOL_PREFIX + name, _older(name), average)
                spread = f"std_dev_{name.removeprefix('average_')}"
                yield self._gauge(PREFIX + spread, f"The standard deviation of {PREFIX}{name}.", deviation)
        stages = [((self.name, stage), value) for stage, value in self.saturations().items()]
        for prefix in (PREFIX, EXTENSION_PREFIX):
            name, labels = prefix + "flow_control_pool_saturation", ("inference_pool", "stage")
            yield gauge(name, "1.0 is full.", labels, _sound(stages))

    def _endpoint_families(self, pool: EndpointPool) -> Iterator[GaugeMetricFamily]:
        """An endpoint that was never scraped has only its requests in flight."""
        all_rows = range(len(pool))
        scraped = np.flatnonzero(np.isfinite(pool.age)).tolist()
        for name, help_text, values, rows in (
            *(
                (*metric.endpoint_gauge, pool.metric(metric), scraped)
                for metric in pool.rows
                if metric.endpoint_gauge is not None
            ),
            (
                "inflight_requests",
                "Requests that this picker sent there and that have not ended.",
                pool.inflight - pool.peer_inflight,
                all_rows,
            ),
            ("metrics_age_seconds", "Since the worker's page was last read.", pool.age, all_rows),
        ):
            yield gauge(
                f"{PREFIX}per_endpoint_{name}", help_text, _ENDPOINT, self._of_endpoints(pool, values, rows)
            )
        yield gauge(
            POOL_PREFIX + "per_pod_queue_size",
            _older("per_endpoint_queue_size"),
            ("name", "model_server_pod"),
            self._of_endpoints(pool, pool.waiting, scraped),
        )

    def _of_endpoints(self, pool: EndpointPool, values: Floats, rows: Iterable[int]) -> Samples:
        return _sound(((self.name, pool.endpoints[row].id), float(values[row])) for row in rows)

    def _gauge(self, name: str, help_text: str, value: float) -> GaugeMetricFamily:
        return gauge(name, help_text, ("name",), _sound([((self.name,), value)]))


def _sound(samples: Samples) -> Samples:
    """Leaves out values that make no sense: whoever reads the page would compute with it."""
    return [(labels, value) for labels, value in samples if math.isfinite(value) and value >= 0]


def _older(name: str) -> str:
    return f"The older name of {PREFIX}{name}."


_UNKNOWN: Final = math.nan
_ENDPOINT: Final = ("name", "model_server_endpoint")


_OUTLIERS: Final = PREFIX + "outlier_detection_"


class Ejections(Protocol):
    """The part of `epp.outlier_watch.OutlierWatch` that is shown."""

    @property
    def detection(self) -> OutlierDetection | None: ...
    @property
    def ejections(self) -> Counter[Cause]: ...
    @property
    def overflows(self) -> int: ...


@dataclass(frozen=True, slots=True)
class OutlierMetrics(Collector):
    """The series of the pool `name` while outlier detection is on; none while it is off."""

    name: str
    watch: Ejections

    def collect(self) -> Iterable[Metric]:
        if self.watch.detection is None:
            return
        active = [((self.name, one.endpoint.id), 1.0) for one in self.watch.detection.ejected]
        help_text = "1 for each endpoint that is ejected."
        yield gauge(_OUTLIERS + "ejections_active", help_text, _ENDPOINT, active)
        counts = [((self.name, cause.value), self.watch.ejections[cause]) for cause in Cause]
        help_text = "Ejections of endpoints, by cause."
        yield counter(_OUTLIERS + "ejections", help_text, ("name", "cause"), counts)
        overflows = [((self.name,), self.watch.overflows)]
        help_text = "Ejections that maxEjectionPercent forbade."
        yield counter(_OUTLIERS + "ejections_overflow", help_text, ("name",), overflows)


class DiscoveryMetrics(Collector):
    """`families`: read on the event loop, empty until the workers are watched."""

    def __init__(self, families: Callable[[], Iterable[WatchMetric]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        for found in self._families():
            kind = counter if found.kind == "counter" else gauge
            yield kind(found.name, found.help, found.label_names, found.samples)


_SOURCE, _EXTRACTOR = "metrics-data-source", "core-metrics-extractor"


class ScrapeErrorCounts(Collector):
    def __init__(self, errors: ScrapeErrors) -> None:
        self._errors = errors

    def collect(self) -> Iterator[Metric]:
        for prefix in (PREFIX, "llm_d_inference_scheduler_"):
            yield counter(
                prefix + "datalayer_poll_errors",
                "Workers' pages that did not come.",
                ("source_type",),
                [((_SOURCE,), self._errors.fetch)],
            )
            yield counter(
                prefix + "datalayer_extract_errors",
                "Workers' pages that came and could not be used.",
                ("source_type", "extractor_type"),
                [((_SOURCE, _EXTRACTOR), self._errors.read)],
            )
