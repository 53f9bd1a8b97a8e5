"""What the metrics page says of outcomes that come by the data plane's log: how many are awaited, how late they are."""

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from epp.ext_proc.outcomes import OutcomeLedger
from epp.plugins.labels import PREFIX


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
        entries = CounterMetricFamily(
            PREFIX + "outcome_entries", "Entries of access logs, by what they told.", labels=("told",)
        )
        for told, count in outcomes.entries.items():
            entries.add_metric((told,), count)
        yield entries
        delays = HistogramMetricFamily(
            PREFIX + "outcome_delay_seconds", "From the end of a request to its entry in the access log."
        )
        delays.add_metric((), outcomes.delays.buckets(), outcomes.delays.total)
        yield delays
