"""How long plugins take, under the Go picker's metric names, current and older."""

from collections.abc import Iterator
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from adsum.histogram import Histogram
from epp.scheduling.decision import Decision, PluginLabels
from epp.scheduling.plugin import producer_labels
from epp.scheduling.scheduler import Scheduler
from epp.telemetry.labels import EXTENSION_PREFIX, PREFIX

BOUNDS: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)


class PluginDurations(Collector):
    """Reads the picks that are noted whole; the others are not measured."""

    def __init__(self) -> None:
        self._seconds: dict[PluginLabels, Histogram] = {}

    def expect(self, scheduler: Scheduler) -> None:
        """Show these plugins before they are called; data producers without `plugin_type` are not shown."""
        labels = [labels for profile in scheduler.profiles.values() for labels in profile.plan.plugins]
        for one in (*labels, *map(producer_labels, scheduler.producers)):
            if one[1]:
                self._seconds.setdefault(one, Histogram(BOUNDS))

    def read(self, decision: Decision) -> None:
        for calls in (decision.calls, *[run.calls for run in decision.runs]):
            for call in calls:
                if (seconds := self._seconds.get(call.labels)) is not None:
                    seconds.observe(call.ended - call.began)

    def collect(self) -> Iterator[Metric]:
        for prefix in (PREFIX, EXTENSION_PREFIX):
            family = HistogramMetricFamily(
                prefix + "plugin_duration_seconds",
                "How long plugins take, measured in the first five picks of a second.",
                labels=("extension_point", "plugin_type", "plugin_name"),
            )
            for labels, seconds in self._seconds.items():
                family.add_metric(labels, seconds.buckets(), seconds.total)
            yield family
