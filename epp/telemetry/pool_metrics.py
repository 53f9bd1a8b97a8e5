"""What the metrics page says of the pool: its endpoints, who is avoided, what is in flight, discovery and scraping."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

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
        stages = self.saturations()
        for prefix in (PREFIX, EXTENSION_PREFIX):
            saturation = GaugeMetricFamily(
                prefix + "flow_control_pool_saturation", "1.0 is full.", labels=("inference_pool", "stage")
            )
            for stage, value in stages.items():
                _add(saturation, (self.name, stage), value)
            yield saturation

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
            family = GaugeMetricFamily(f"{PREFIX}per_endpoint_{name}", help_text, labels=_ENDPOINT)
            self._add_endpoints(family, pool, values, rows)
            yield family
        family = GaugeMetricFamily(
            POOL_PREFIX + "per_pod_queue_size",
            _older("per_endpoint_queue_size"),
            labels=("name", "model_server_pod"),
        )
        self._add_endpoints(family, pool, pool.waiting, scraped)
        yield family

    def _add_endpoints(
        self, family: GaugeMetricFamily, pool: EndpointPool, values: Floats, rows: Iterable[int]
    ) -> None:
        for row in rows:
            _add(family, (self.name, pool.endpoints[row].id), float(values[row]))

    def _gauge(self, name: str, help_text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, help_text, labels=("name",))
        _add(family, (self.name,), value)
        return family


def _add(family: GaugeMetricFamily, labels: Sequence[str], value: float) -> None:
    """Add a sample, unless the value makes no sense: whoever reads the page would compute with it."""
    if math.isfinite(value) and value >= 0:
        family.add_metric(labels, value)


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
        active = GaugeMetricFamily(
            _OUTLIERS + "ejections_active", "1 for each endpoint that is ejected.", labels=_ENDPOINT
        )
        for record in self.watch.detection.ejected:
            active.add_metric((self.name, record.endpoint.id), 1.0)
        yield active
        ejections = CounterMetricFamily(
            _OUTLIERS + "ejections", "Ejections of endpoints, by cause.", labels=("name", "cause")
        )
        counts = self.watch.ejections
        for cause in Cause:
            ejections.add_metric((self.name, cause.value), counts[cause])
        yield ejections
        overflow = CounterMetricFamily(
            _OUTLIERS + "ejections_overflow", "Ejections that maxEjectionPercent forbade.", labels=("name",)
        )
        overflow.add_metric((self.name,), self.watch.overflows)
        yield overflow


class DiscoveryMetrics(Collector):
    """`families`: read on the event loop, empty until the workers are watched."""

    def __init__(self, families: Callable[[], Iterable[WatchMetric]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        for found in self._families():
            kind = CounterMetricFamily if found.kind == "counter" else GaugeMetricFamily
            family = kind(found.name, found.help, labels=found.label_names)
            for labels, value in found.samples:
                family.add_metric(labels, value)
            yield family


_SOURCE, _EXTRACTOR = "metrics-data-source", "core-metrics-extractor"


class ScrapeErrorCounts(Collector):
    def __init__(self, errors: ScrapeErrors) -> None:
        self._errors = errors

    def collect(self) -> Iterator[Metric]:
        for prefix in (PREFIX, "llm_d_inference_scheduler_"):
            fetch = CounterMetricFamily(
                prefix + "datalayer_poll_errors", "Workers' pages that did not come.", labels=("source_type",)
            )
            fetch.add_metric((_SOURCE,), self._errors.fetch)
            read = CounterMetricFamily(
                prefix + "datalayer_extract_errors",
                "Workers' pages that came and could not be used.",
                labels=("source_type", "extractor_type"),
            )
            read.add_metric((_SOURCE, _EXTRACTOR), self._errors.read)
            yield from (fetch, read)
