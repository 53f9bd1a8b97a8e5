"""The metrics of the picker itself: version, configuration, streams, rewritten models, outcomes and plugins."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from adsum.histogram import Histogram
from adsum.logs import RateLimitedLog
from adsum.metric_families import counter, gauge, histogram
from epp.config.live_config import LiveConfig
from epp.ext_proc.outcome_ledger import OutcomeLedger
from epp.plugins.declaration import PluginDeclaration
from epp.plugins.labels import EXTENSION_PREFIX, OTHER, PREFIX, label_value
from epp.scheduling.decision import Decision, PluginLabels
from epp.scheduling.plugin import PredictingProducer, producer_labels
from epp.scheduling.scheduler import Scheduler
from epp.telemetry.request_tally import LABEL_SETS


class BuildInfo(Collector):
    """`build_ref` is adsum's version; a package does not know its commit, so that label is empty."""

    def __init__(self) -> None:
        try:
            self._version = version("adsum")
        except PackageNotFoundError:
            self._version = ""

    def collect(self) -> Iterator[Metric]:
        for prefix in (PREFIX, EXTENSION_PREFIX):
            build = (("", self._version), 1)
            yield gauge(prefix + "info", "The build that runs.", ("commit", "build_ref"), [build])


class ConfigGauges(Collector):
    """Reads its numbers when the page is read."""

    def __init__(self, config: LiveConfig) -> None:
        self._config = config

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            PREFIX + "config_last_reload_successful",
            "Whether the configuration file, as it is now, is in force.",
            value=float(not self._config.problem),
        )
        yield GaugeMetricFamily(
            PREFIX + "config_last_reload_success_timestamp_seconds",
            "When the configuration in force was read, in seconds since the epoch.",
            value=self._config.in_force_since,
        )


_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 120, 300, 600)


class StreamCounts(Collector):
    """`open_streams`: how many there are now; may be called in any thread."""

    def __init__(self, open_streams: Callable[[], int]) -> None:
        self._open_streams = open_streams
        self._codes: dict[str, int] = {}
        self._durations = Histogram(_SECONDS)

    def ended(self, code: str, seconds: float) -> None:
        """Count one ext_proc stream: gRPC's name of its status, and how long it was open."""
        self._codes[code] = self._codes.get(code, 0) + 1
        self._durations.observe(max(0.0, seconds))

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            PREFIX + "extproc_streams_inflight", "ext_proc streams that are open.", self._open_streams()
        )
        name, help_text = "extproc_stream_duration_seconds", "How long ext_proc streams were open."
        yield histogram(PREFIX + name, help_text, of=self._durations)
        ended = [((code,), count) for code, count in self._codes.copy().items()]
        help_text = "ext_proc streams that ended, by their gRPC status."
        yield counter(PREFIX + "extproc_streams", help_text, ("code",), ended)


_LABELS = ("model_rewrite_name", "model_name", "target_model")


class RewriteDecisions(Collector):
    """By rule, the client's model and target. Beyond `label_sets` the client's model is `other`, which a client chooses."""

    def __init__(self, label_sets: int = LABEL_SETS) -> None:
        self._limit = label_sets
        self._counts: dict[tuple[str, str, str], int] = {}

    def count(self, rule: str, model: str, target: str) -> None:
        """One request for `model` goes to `target`; the `on_decision` of `ModelRewrites`."""
        labels = (label_value(rule), label_value(model), label_value(target))
        if labels not in self._counts and len(self._counts) >= self._limit:
            labels = (labels[0], OTHER, labels[2])
        self._counts[labels] = self._counts.get(labels, 0) + 1

    def collect(self) -> Iterator[Metric]:
        """Nothing before the first decision; read in other threads, hence the copy."""
        counts = self._counts.copy().items()
        for prefix in (PREFIX, EXTENSION_PREFIX) if counts else ():
            help_text = "Requests whose model a rule chose."
            yield counter(prefix + "model_rewrite_decisions", help_text, _LABELS, counts)


class OutcomeMetrics(Collector):
    """Nothing before the first pick that is awaited. May be read in any thread."""

    def __init__(self, outcomes: OutcomeLedger) -> None:
        self._outcomes = outcomes

    def collect(self) -> Iterator[Metric]:
        outcomes = self._outcomes
        if not outcomes.used:
            return
        yield GaugeMetricFamily(
            PREFIX + "outcomes_awaited", "Picks whose outcome the access log has not told.", len(outcomes)
        )
        yield CounterMetricFamily(
            PREFIX + "outcomes_lost",
            "Picks that were released since the access log said nothing of them.",
            outcomes.lost,
        )
        entries = [((told,), count) for told, count in outcomes.entries.items()]
        help_text = "Entries of access logs, by what they told."
        yield counter(PREFIX + "outcome_entries", help_text, ("told",), entries)
        help_text = "From the end of a request to its entry in the access log."
        yield histogram(PREFIX + "outcome_delay_seconds", help_text, of=outcomes.delays)


_PLUGIN_SECONDS: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)


class PluginDurations(Collector):
    """Reads the picks that are noted whole; the others are not measured."""

    def __init__(self) -> None:
        self._seconds: dict[PluginLabels, Histogram] = {}

    def expect(self, scheduler: Scheduler) -> None:
        """Show these plugins before they are called; data producers without `plugin_type` are not shown."""
        labels = [labels for profile in scheduler.profiles.values() for labels in profile.plan.plugins]
        for one in (*labels, *map(producer_labels, scheduler.producers)):
            if one[1]:
                self._seconds.setdefault(one, Histogram(_PLUGIN_SECONDS))

    def read(self, decision: Decision) -> None:
        for calls in (decision.calls, *[run.calls for run in decision.runs]):
            for call in calls:
                if (seconds := self._seconds.get(call.labels)) is not None:
                    seconds.observe(call.ended - call.began)

    def collect(self) -> Iterator[Metric]:
        for prefix in (PREFIX, EXTENSION_PREFIX):
            yield histogram(
                prefix + "plugin_duration_seconds",
                "How long plugins take, measured in the first five picks of a second.",
                ("extension_point", "plugin_type", "plugin_name"),
                self._seconds.items(),
            )


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
        yield histogram(
            PREFIX + "expected_time_to_first_byte_seconds",
            "From the pick to the first byte of a streamed answer, as expected at the pick.",
            of=producer.predictions,
        )
        yield histogram(
            PREFIX + "expected_time_to_first_byte_error_ratio",
            "By which share of what came that was wrong.",
            of=producer.prediction_errors,
        )
