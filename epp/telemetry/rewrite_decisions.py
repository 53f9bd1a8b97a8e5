"""Counts what the rewrite rules chose, under the Go picker's metric name."""

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from epp.telemetry.labels import EXTENSION_PREFIX, OTHER, PREFIX, label_value
from epp.telemetry.request_tally import LABEL_SETS

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
