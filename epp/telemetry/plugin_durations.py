"""How long plugins take, under the Go picker's metric names, current and older."""

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from epp.scheduling.timed_plugins import PluginTimes
from epp.telemetry.labels import EXTENSION_PREFIX, PREFIX

_LABELS = ("extension_point", "plugin_type", "plugin_name")


class PluginDurations(Collector):
    def __init__(self, times: PluginTimes) -> None:
        self._times = times

    def collect(self) -> Iterator[Metric]:
        for prefix in (PREFIX, EXTENSION_PREFIX):
            family = HistogramMetricFamily(
                prefix + "plugin_duration_seconds",
                "How long plugins take, measured in one pick of 500.",
                labels=_LABELS,
            )
            for labels, seconds in self._times.current().items():
                family.add_metric(labels, seconds.buckets(), seconds.total)
            yield family
