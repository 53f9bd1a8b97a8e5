"""Metrics that are read for each scrape: the broker's totals over all processes, and the gates."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dispatcher.broker.contract.queue import Totals
from dispatcher.gates.metering.meter import MeterState
from dispatcher.telemetry.counters import LABELS, PREFIX

_METER_LABELS = (*LABELS, "source")
_COUNTERS = {
    "submitted": "Requests accepted.",
    "succeeded": "Requests answered with a status below 400.",
    "failed": "Requests answered with an error.",
    "expired": "Requests answered with DEADLINE_EXCEEDED.",
    "cancelled": "Requests answered with CANCELLED.",
    "dropped": "Requests answered with GATE_DROPPED.",
    "retries": "Waits for another attempt.",
    "redelivered": "Claims taken over from an owner that was gone.",
    "dead_letters": "Messages that were no requests, or that nobody survived.",
}
_GAUGES: dict[str, tuple[str, Callable[[Totals], int]]] = {
    "broker_backlog": ("Requests without a result in the broker.", lambda totals: totals.pending),
    "broker_claimed": ("Requests in flight.", lambda totals: totals.claimed),
    "broker_delayed": ("Requests that wait for another attempt.", lambda totals: totals.delayed),
    "queue_depth": ("Requests that wait or are delayed.", lambda totals: totals.pending - totals.claimed),
}


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """The state of one queue for a scrape. `totals` None: the broker did not answer."""

    queue: str
    target: str
    budget: float
    totals: Totals | None
    concurrency: int
    """Requests of this process that may be in flight to the target."""
    meters: Sequence[MeterState]

    @property
    def labels(self) -> tuple[str, str, str]:
        return (self.queue, self.queue, self.target)


@dataclass(frozen=True, slots=True)
class BrokerMetrics(Collector):
    """The totals of a queue come from one read, so that `submitted` is the sum of its parts."""

    queues: Sequence[QueueStatus]

    def collect(self) -> Iterable[Metric]:
        """A queue whose totals are unknown has no samples of them."""
        yield from self._broker_families()
        yield from self._queue_families()
        yield from self._gate_families()

    def _broker_families(self) -> Iterable[Metric]:
        known = [(queue.labels, queue.totals) for queue in self.queues if queue.totals is not None]
        for name, text in _COUNTERS.items():
            counter = CounterMetricFamily(
                f"{PREFIX}broker_{name}", f"{text} Over all processes.", labels=LABELS
            )
            for labels, totals in known:
                counter.add_metric(labels, asdict(totals)[name])
            yield counter
        for name, (text, of) in _GAUGES.items():
            gauge = GaugeMetricFamily(PREFIX + name, f"{text} Over all processes.", labels=LABELS)
            for labels, totals in known:
                gauge.add_metric(labels, of(totals))
            yield gauge

    def _queue_families(self) -> Iterable[Metric]:
        budget = GaugeMetricFamily(PREFIX + "dispatch_budget", "max(0, D - B) of the gate.", labels=LABELS)
        available = GaugeMetricFamily(
            PREFIX + "broker_backlog_source_available", "Whether the broker answered.", labels=LABELS
        )
        limit = GaugeMetricFamily(
            PREFIX + "pool_worker_limit", "Requests that may be in flight.", labels=("pool_name",)
        )
        for queue in self.queues:
            budget.add_metric(queue.labels, queue.budget)
            available.add_metric(queue.labels, float(queue.totals is not None))
        for target, concurrency in {queue.target: queue.concurrency for queue in self.queues}.items():
            limit.add_metric((target,), concurrency)
        yield from (budget, available, limit)

    def _gate_families(self) -> Iterable[Metric]:
        value = GaugeMetricFamily(
            PREFIX + "gate_metric_value", "What a gate read last.", labels=_METER_LABELS
        )
        threshold = GaugeMetricFamily(
            PREFIX + "gate_metric_threshold", "The value at which a gate closes.", labels=_METER_LABELS
        )
        readable = GaugeMetricFamily(
            PREFIX + "gate_metric_source_available",
            "Whether a gate can read its metric.",
            labels=_METER_LABELS,
        )
        for queue in self.queues:
            for state in queue.meters:
                labels = (*queue.labels, state.name)
                readable.add_metric(labels, float(state.available))
                if state.value is not None:
                    value.add_metric(labels, state.value)
                if state.threshold is not None:
                    threshold.add_metric(labels, state.threshold)
        yield from (value, threshold, readable)
