"""The metrics of this process, and those that are read for each scrape: the broker's totals over all processes, and the gates.

Names are those of llm-d's Go processor where it has them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from adsum.histogram import Histogram
from adsum.metric_families import Samples, counter, gauge, histogram
from dispatcher.broker.contract.message import Claim, DispatchCandidate
from dispatcher.broker.contract.queue import Totals
from dispatcher.broker.contract.validation import counted_as
from dispatcher.delivery.gateway import GatewayAnswer, NoAnswer
from dispatcher.delivery.sender import DispatchObserver
from dispatcher.delivery.verdict import Finish, Retry, Verdict, was_shed
from dispatcher.gates.gate import RefusedError, Scope
from dispatcher.gates.metering.meter import MeterState

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
        queues = self.queues.items()
        for name, text in _COUNTERS.items():
            yield _counter(name, text, ((labels, counts.counters[name]) for labels, counts in queues))
        reasons = (
            ((*labels, reason), count) for labels, counts in queues for reason, count in counts.gate.items()
        )
        yield _counter("gate_decisions", "Refusals of a gate.", reasons, "reason")
        inflight = ((labels, counts.inflight) for labels, counts in queues)
        yield _gauge("inflight_requests", "Requests claimed and not settled yet.", inflight)
        for name, text, of in _HISTOGRAMS:
            yield histogram(PREFIX + name, text, LABELS, ((labels, of(counts)) for labels, counts in queues))
        text = "1: the last version of the configuration file is in force."
        yield GaugeMetricFamily(PREFIX + "config_in_force", text, value=float(self.config_in_force))


_HISTOGRAMS: Sequence[tuple[str, str, Callable[[QueueCounters], Histogram]]] = (
    ("inference_latency_time_millis", "From an attempt to its answer.", attrgetter("inference_ms")),
    ("message_latency_time_millis", "From the submission of a request to its answer.", attrgetter("message_ms")),
)  # fmt: skip


def _counter_of(verdict: Finish) -> str:
    ends = {"succeeded": "successful_requests", "expired": "exceeded_deadline_requests"}
    return ends.get(counted_as(verdict.result), "failed_requests")


_TOTALS = {
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
        known = [(queue.labels, queue.totals) for queue in self.queues if queue.totals is not None]
        for name, text in _TOTALS.items():
            counts = ((labels, asdict(totals)[name]) for labels, totals in known)
            yield _counter(f"broker_{name}", f"{text} Over all processes.", counts)
        for name, (text, of) in _GAUGES.items():
            now = ((labels, of(totals)) for labels, totals in known)
            yield _gauge(name, f"{text} Over all processes.", now)
        yield from self._queue_families()
        yield from self._gate_families()

    def _queue_families(self) -> Iterable[Metric]:
        budgets = ((queue.labels, queue.budget) for queue in self.queues)
        yield _gauge("dispatch_budget", "max(0, D - B) of the gate.", budgets)
        answered = ((queue.labels, float(queue.totals is not None)) for queue in self.queues)
        yield _gauge("broker_backlog_source_available", "Whether the broker answered.", answered)
        limits = {(queue.target,): queue.concurrency for queue in self.queues}.items()
        text = "Requests that may be in flight."
        yield gauge(PREFIX + "pool_worker_limit", text, ("pool_name",), limits)

    def _gate_families(self) -> Iterable[Metric]:
        meters = [((*queue.labels, one.name), one) for queue in self.queues for one in queue.meters]
        values = ((labels, one.value) for labels, one in meters if one.value is not None)
        yield _gauge("gate_metric_value", "What a gate read last.", values, "source")
        thresholds = ((labels, one.threshold) for labels, one in meters if one.threshold is not None)
        yield _gauge("gate_metric_threshold", "The value at which a gate closes.", thresholds, "source")
        readable = ((labels, float(one.available)) for labels, one in meters)
        yield _gauge(
            "gate_metric_source_available", "Whether a gate can read its metric.", readable, "source"
        )


def _counter(name: str, text: str, samples: Samples, *further_labels: str) -> Metric:
    return counter(PREFIX + name, text, (*LABELS, *further_labels), samples)


def _gauge(name: str, text: str, samples: Samples, *further_labels: str) -> Metric:
    return gauge(PREFIX + name, text, (*LABELS, *further_labels), samples)
