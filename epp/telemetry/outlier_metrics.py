"""Counts ejections of endpoints, under names like those of Envoy's outlier detection; nothing while it is off.

https://www.envoyproxy.io/docs/envoy/latest/configuration/upstream/cluster_manager/cluster_stats#outlier-detection-statistics
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from epp.outliers.detection import OutlierDetection
from epp.outliers.outlier_record import Cause
from epp.telemetry.labels import PREFIX

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


_ENDPOINT: Final[Sequence[str]] = ("name", "model_server_endpoint")
