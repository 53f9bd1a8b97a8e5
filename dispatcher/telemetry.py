"""What the dispatcher counts, under the Go processor's names where it has them, in a registry of its own.

All of it is of this process; `dispatcher.readings` has what is looked up.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from dispatcher.acceptance import counted_as
from dispatcher.gates.gate import Outcome, RefusedError, Scope
from dispatcher.gateway import Answer, NoAnswer
from dispatcher.message import Candidate, Claim
from dispatcher.observing import Observer
from dispatcher.verdict import Again, Final, Verdict, outcome_of

PREFIX = "llm_d_async_async_"
LABELS = ("queue_id", "queue_name", "pool_name")
REASONS = ("gate_closed", "quota_exhausted", "dropped", "error")
_INFERENCE_BUCKETS = (10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000, 60000, 120000, 300000)
_MESSAGE_BUCKETS = (10, 100, 1000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000, 10000000)
_COUNTERS = {
    "request": "Requests sent for the first time.",
    "request_retries": "Attempts that were followed by a wait for another one.",
    "successful_requests": "Requests answered with a status below 400.",
    "failed_requests": "Requests answered with an error, the deadline's apart.",
    "shedded_requests": "Attempts that the target refused as too many.",
    "exceeded_deadline_requests": "Requests whose deadline ended here; those that ended in the queue, see broker_.",
    "dispatched_requests": "Attempts sent.",
}


@dataclass(frozen=True, slots=True)
class QueueCounts(Observer):
    """Everything of one queue; made at once, so that each series is there at 0."""

    counters: Mapping[str, Counter]
    gate: Mapping[str, Counter]
    inflight: Gauge
    inference: Histogram
    message: Histogram

    def refused(self, candidate: Candidate, refusal: RefusedError) -> None:
        """Count it under whom it holds up."""
        self.gate["quota_exhausted" if refusal.scope is Scope.TENANT else "gate_closed"].inc()

    def claimed(self, claim: Claim) -> None:
        """One more on its way."""
        self.inflight.inc()

    def landed(self) -> None:
        """One less."""
        self.inflight.dec()

    def sent(self, claim: Claim) -> None:
        """Count the attempt, and the request where it is the first."""
        self.counters["dispatched_requests"].inc()
        if claim.attempt == 0:
            self.counters["request"].inc()

    def answered(self, claim: Claim, answer: Answer | NoAnswer, seconds: float) -> None:
        """How long it took, and whether it was shed."""
        self.inference.observe(seconds * 1000)
        if outcome_of(answer) is Outcome.OVERLOADED:
            self.counters["shedded_requests"].inc()

    def settled(self, claim: Claim, verdict: Verdict, ours: bool) -> None:
        """Count the end, once: only what was ours."""
        if not ours:
            return
        if isinstance(verdict, Again):
            self.counters["request_retries"].inc()
        elif isinstance(verdict, Final):
            self.counters[_end(verdict)].inc()
            if claim.request.created_ms:
                self.message.observe(max(0, verdict.result.finished_ms - claim.request.created_ms))

    def sweeping(self) -> None:
        """Nothing to count."""


class Telemetry:
    """`registry` is what a metrics page shows."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self._counters = {
            name: Counter(PREFIX + name, text, LABELS, registry=registry) for name, text in _COUNTERS.items()
        }
        self._gate = Counter(
            PREFIX + "gate_decisions", "Refusals of a gate.", (*LABELS, "reason"), registry=registry
        )
        self._inflight = Gauge(
            PREFIX + "inflight_requests", "Requests claimed, whose end the broker does not know yet.", LABELS,
            registry=registry,
        )  # fmt: skip
        self._inference = Histogram(
            PREFIX + "inference_latency_time_millis", "From an attempt to its answer.", LABELS,
            buckets=_INFERENCE_BUCKETS, registry=registry,
        )  # fmt: skip
        self._message = Histogram(
            PREFIX + "message_latency_time_millis", "From the submission of a request to its answer.", LABELS,
            buckets=_MESSAGE_BUCKETS, registry=registry,
        )  # fmt: skip

        self.in_force = Gauge(
            PREFIX + "config_in_force",
            "1: the configuration file as it stands is in force.",
            registry=registry,
        )
        self.in_force.set(1)

    def of(self, queue: str, target: str) -> QueueCounts:
        """The observer of one queue; from now on its series are shown."""
        labels = (queue, queue, target)
        return QueueCounts(
            {name: counter.labels(*labels) for name, counter in self._counters.items()},
            {reason: self._gate.labels(*labels, reason) for reason in REASONS},
            self._inflight.labels(*labels),
            self._inference.labels(*labels),
            self._message.labels(*labels),
        )


def _end(verdict: Final) -> str:
    ends = {"succeeded": "successful_requests", "expired": "exceeded_deadline_requests"}
    return ends.get(counted_as(verdict.result), "failed_requests")
