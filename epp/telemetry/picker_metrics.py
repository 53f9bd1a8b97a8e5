"""What the metrics page says of the picker itself: its version, configuration, streams and rewritten models."""

from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from adsum.histogram import Histogram
from epp.config.live_config import LiveConfig
from epp.plugins.labels import EXTENSION_PREFIX, OTHER, PREFIX, label_value
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
            family = GaugeMetricFamily(
                prefix + "info", "The build that runs.", labels=("commit", "build_ref")
            )
            family.add_metric(("", self._version), 1)
            yield family


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
        durations = HistogramMetricFamily(
            PREFIX + "extproc_stream_duration_seconds", "How long ext_proc streams were open."
        )
        durations.add_metric((), self._durations.buckets(), self._durations.total)
        yield durations
        ended = CounterMetricFamily(
            PREFIX + "extproc_streams", "ext_proc streams that ended, by their gRPC status.", labels=("code",)
        )
        for code, count in self._codes.copy().items():
            ended.add_metric((code,), count)
        yield ended


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
        counts = self._counts.copy()
        for prefix in (PREFIX, EXTENSION_PREFIX) if counts else ():
            family = CounterMetricFamily(
                prefix + "model_rewrite_decisions", "Requests whose model a rule chose.", labels=_LABELS
            )
            for labels, count in counts.items():
                family.add_metric(labels, count)
            yield family
