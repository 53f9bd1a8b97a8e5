"""Counters and histograms of this process. Names are those of llm-d's Go processor where it has them.

`dispatcher.telemetry.broker_metrics` has the totals over all processes.
"""

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from adsum.histogram import Histogram
from dispatcher.broker.contract.message import Claim, DispatchCandidate
from dispatcher.broker.contract.validation import counted_as
from dispatcher.delivery.gateway import GatewayAnswer, NoAnswer
from dispatcher.delivery.observer import DispatchObserver
from dispatcher.delivery.verdict import Finish, Retry, Verdict, was_shed
from dispatcher.gates.gate import RefusedError, Scope

PREFIX = "llm_d_async_async_"
LABELS = ("queue_id", "queue_name", "pool_name")
REFUSAL_REASONS = ("gate_closed", "quota_exhausted", "dropped", "error")
_INFERENCE_BUCKETS = (10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000, 60000, 120000, 300000)
_MESSAGE_BUCKETS = (10, 100, 1000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000, 10000000)
_COUNTERS = {
    "request": "Requests sent for the first time.",
    "request_retries": "Attempts that are followed by a retry.",
    "successful_requests": "Requests answered with a status below 400.",
    "failed_requests": "Requests answered with an error, the deadline's apart.",
    "shedded_requests": "Attempts that the target refused as too many.",
    "exceeded_deadline_requests": "Requests whose deadline ended here; those that ended in the queue, see broker_.",
    "dispatched_requests": "Attempts sent.",
}


class QueueCounters(DispatchObserver):
    """The metrics of one queue as plain numbers, since each request changes ten of them. All series begin at 0."""

    def __init__(self) -> None:
        self.counters = dict.fromkeys(_COUNTERS, 0)
        self.gate = dict.fromkeys(REFUSAL_REASONS, 0)
        self.inflight = 0
        self.inference_ms = Histogram(_INFERENCE_BUCKETS)
        self.message_ms = Histogram(_MESSAGE_BUCKETS)

    def refused(self, candidate: DispatchCandidate, refusal: RefusedError) -> None:
        """Counted by the scope of the refusal."""
        self.gate["quota_exhausted" if refusal.scope is Scope.TENANT else "gate_closed"] += 1

    def claimed(self, claim: Claim) -> None:
        self.inflight += 1

    def slot_released(self) -> None:
        self.inflight -= 1

    def sent(self, claim: Claim) -> None:
        """Counts the attempt, and on the first one the request."""
        self.counters["dispatched_requests"] += 1
        if claim.attempt == 0:
            self.counters["request"] += 1

    def answered(self, claim: Claim, answer: GatewayAnswer | NoAnswer, seconds: float) -> None:
        """Observes the latency, and counts answers by which the target shed load."""
        self.inference_ms.observe(seconds * 1000)
        if was_shed(answer):
            self.counters["shedded_requests"] += 1

    def settled(self, claim: Claim, verdict: Verdict, accepted: bool) -> None:
        """Counts only verdicts that the broker took: another process counts the others."""
        if not accepted:
            return
        if isinstance(verdict, Retry):
            self.counters["request_retries"] += 1
        elif isinstance(verdict, Finish):
            self.counters[_counter_of(verdict)] += 1
            if claim.request.created_ms:
                self.message_ms.observe(max(0, verdict.result.finished_ms - claim.request.created_ms))

    def sweeping(self) -> None: ...


class DispatcherTelemetry(Collector):
    """The metrics of this process. `config_in_force`: the last version of the configuration file was accepted.

    `queues`: by the values of `LABELS`.
    """

    def __init__(self) -> None:
        self.queues: dict[tuple[str, str, str], QueueCounters] = {}
        self.config_in_force = True

    def of(self, queue: str, target: str) -> QueueCounters:
        """The observer of one queue; its series are exported from now on."""
        return self.queues.setdefault((queue, queue, target), QueueCounters())

    def collect(self) -> Iterable[Metric]:
        for name, text in _COUNTERS.items():
            family = CounterMetricFamily(PREFIX + name, text, labels=LABELS)
            for labels, counts in self.queues.items():
                family.add_metric(labels, counts.counters[name])
            yield family
        yield from self._gate_families()
        yield from self._latency_families()
        text = "1: the last version of the configuration file is in force."
        yield GaugeMetricFamily(PREFIX + "config_in_force", text, value=float(self.config_in_force))

    def _gate_families(self) -> Iterable[Metric]:
        refusals = CounterMetricFamily(
            PREFIX + "gate_decisions", "Refusals of a gate.", labels=(*LABELS, "reason")
        )
        inflight = GaugeMetricFamily(
            PREFIX + "inflight_requests", "Requests claimed and not settled yet.", labels=LABELS
        )  # fmt: skip
        for labels, counts in self.queues.items():
            inflight.add_metric(labels, counts.inflight)
            for reason, count in counts.gate.items():
                refusals.add_metric((*labels, reason), count)
        yield from (refusals, inflight)

    def _latency_families(self) -> Iterable[Metric]:
        inference = HistogramMetricFamily(
            PREFIX + "inference_latency_time_millis", "From an attempt to its answer.", labels=LABELS
        )
        message = HistogramMetricFamily(
            PREFIX + "message_latency_time_millis", "From the submission of a request to its answer.", labels=LABELS
        )  # fmt: skip
        for labels, counts in self.queues.items():
            inference.add_metric(labels, counts.inference_ms.buckets(), counts.inference_ms.total)
            message.add_metric(labels, counts.message_ms.buckets(), counts.message_ms.total)
        yield from (inference, message)


def _counter_of(verdict: Finish) -> str:
    ends = {"succeeded": "successful_requests", "expired": "exceeded_deadline_requests"}
    return ends.get(counted_as(verdict.result), "failed_requests")
