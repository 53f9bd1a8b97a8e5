"""Gauges of the pool and of each endpoint, computed when the metrics page is read.

Names follow the Go picker (its docs/metrics.md), and the Gateway API Inference Extension where dashboards still use
its names. Metrics of our own have the same prefix.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from epp.endpoints.endpoint import EndpointPool, Floats, Mask
from epp.telemetry.counters import PREFIX


@dataclass(frozen=True, slots=True)
class PoolGauges(Collector):
    """Gauges of the whole pool and of each endpoint.

    Averages cover the endpoints whose numbers are younger than `stale_after` seconds. They are NaN if there are none:
    a dispatcher or an autoscaler would read 0 as idle. `name`: the pool's.
    """

    name: str
    pool: Callable[[], EndpointPool]
    saturation: Callable[[], float]
    stale_after: float

    def collect(self) -> Iterable[GaugeMetricFamily]:
        pool = self.pool()
        yield from self._pool_families(pool)
        yield from self._endpoint_families(pool)

    def _pool_families(self, pool: EndpointPool) -> Iterator[GaugeMetricFamily]:
        ready = float(pool.reachable.sum())
        fresh = pool.fresh(self.stale_after)
        yield self._gauge(PREFIX + "ready_endpoints", "Endpoints that can be reached.", ready)
        yield self._gauge(
            "inference_pool_ready_pods",
            "Endpoints that can be reached, under the name of the Gateway API Inference Extension.",
            ready,
        )
        for metric in pool.rows:
            if metric.pool_gauge is not None:
                name, help_text = metric.pool_gauge
                yield self._gauge(PREFIX + name, help_text, _average(pool.metric(metric), fresh))
        saturation = GaugeMetricFamily(
            PREFIX + "flow_control_pool_saturation", "1.0 is full.", labels=("inference_pool", "stage")
        )
        saturation.add_metric((self.name, ""), self.saturation())
        yield saturation

    def _endpoint_families(self, pool: EndpointPool) -> Iterator[GaugeMetricFamily]:
        """An endpoint that was never scraped has only an age, infinity, and its requests in flight."""
        all_rows = range(len(pool))
        scraped = np.flatnonzero(np.isfinite(pool.age)).tolist()
        for name, help_text, values, rows in (
            *(
                (*metric.endpoint_gauge, pool.metric(metric), scraped)
                for metric in pool.rows
                if metric.endpoint_gauge is not None
            ),
            ("inflight_requests", "Requests sent there that have not ended.", pool.inflight, all_rows),
            ("metrics_age_seconds", "Since the worker's page was last read.", pool.age, all_rows),
        ):
            family = GaugeMetricFamily(f"{PREFIX}per_endpoint_{name}", help_text, labels=_ENDPOINT)
            self._add(family, pool, values, rows)
            yield family
        family = GaugeMetricFamily(
            "inference_pool_per_pod_queue_size",
            "Requests waiting in the worker, under the name of the Gateway API Inference Extension.",
            labels=("name", "model_server_pod"),
        )
        self._add(family, pool, pool.waiting, scraped)
        yield family

    def _add(
        self, family: GaugeMetricFamily, pool: EndpointPool, values: Floats, rows: Iterable[int]
    ) -> None:
        for row in rows:
            family.add_metric((self.name, pool.endpoints[row].id), float(values[row]))

    def _gauge(self, name: str, help_text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, help_text, labels=("name",))
        family.add_metric((self.name,), value)
        return family


def _average(values: Floats, fresh: Mask) -> float:
    known = values[fresh]
    if len(known):
        return float(np.nanmean(known))
    return np.nan if len(values) else 0.0


_ENDPOINT: Final = ("name", "model_server_endpoint")
