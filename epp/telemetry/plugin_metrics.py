"""What the metrics page says of plugins: how long they take, and what they show of themselves."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client import Metric
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from adsum.histogram import Histogram
from adsum.logs import RateLimitedLog
from epp.plugins.declaration import PluginDeclaration
from epp.plugins.labels import EXTENSION_PREFIX, PREFIX
from epp.scheduling.decision import Decision, PluginLabels
from epp.scheduling.plugin import PredictingProducer, producer_labels
from epp.scheduling.scheduler import Scheduler

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


class PluginMetrics(Collector):
    """`shown`: the plugins in use whose type declares metrics, by its name, with the declaration."""

    def __init__(self, shown: Callable[[], Mapping[str, tuple[PluginDeclaration, Sequence[Any]]]]) -> None:
        self._shown = shown
        self._limited_log = RateLimitedLog(logging.getLogger(__name__))

    def collect(self) -> Iterator[Metric]:
        for name, (declared, plugins) in self._shown().items():
            try:
                yield from list(declared.metrics(plugins))
            except Exception as error:  # noqa: BLE001  # of an installed package: it must not hide the other metrics
                self._limited_log.warning(
                    name, "the metrics of the plugin %s cannot be read: %r", name, error
                )


class PredictionMetrics(Collector):
    """Nothing before the first prediction of which is known what came."""

    def __init__(self, predicting: Callable[[], PredictingProducer | None]) -> None:
        self._predicting = predicting

    def collect(self) -> Iterator[Metric]:
        producer = self._predicting()
        if producer is None or not producer.predictions.count:
            return
        for name, help_text, histogram in (
            (
                "expected_time_to_first_byte_seconds",
                "From the pick to the first byte of a streamed answer, as expected at the pick.",
                producer.predictions,
            ),
            (
                "expected_time_to_first_byte_error_ratio",
                "By which share of what came that was wrong.",
                producer.prediction_errors,
            ),
        ):
            family = HistogramMetricFamily(PREFIX + name, help_text)
            family.add_metric((), histogram.buckets(), histogram.total)
            yield family
