"""What discovery knows of the workers, on the picker's page, under the names that `discovery.watch_metrics` gives."""

from collections.abc import Callable, Iterable

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from discovery.watch_metrics import WatchMetric


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
