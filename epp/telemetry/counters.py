"""Counts requests, errors, durations and waits under the Go picker's metric names (its docs/metrics.md)."""

from collections.abc import Callable, Iterator
from functools import partial

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily

from adsum.histogram import Histogram
from adsum.metric_families import histogram
from epp.ext_proc.response_body import ResponseBodyReader, ResponseHead
from epp.plugins.labels import EXTENSION_PREFIX, PREFIX
from epp.request.inference_request import InferenceRequest
from epp.request.rejection import Rejection
from epp.response.usage import Usage
from epp.scheduling.pick import Pick
from epp.scheduling.plugin import DeliveryFollower
from epp.scheduling.waiting import Dequeued
from epp.telemetry.flow_control_metrics import DISPATCHED, FlowControlTally, queue_families
from epp.telemetry.request_families import request_metrics
from epp.telemetry.request_tally import (
    LABEL_SETS,
    QUEUE_BUCKETS,
    STEP_BUCKETS,
    AnswerMeter,
    RequestTallies,
    RequestTally,
    open_prompt_meter,
)

_ERROR_CODES = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    412: "PreconditionFailed",
    413: "PayloadTooLarge",
    429: "ResourceExhausted",
    503: "ServiceUnavailable",
}


class Telemetry:
    """Counts in plain numbers, which become metrics when the page is read.

    An `epp.ext_proc.request_report.Observer` and an `epp.scheduling.waiting.QueueObserver`. The families of the queue
    are shown from the first request that waits, or while flow control is on (`flow_control.enabled`). `registry` may be read
    in any thread, `gauges`, of what is computed, only on the event loop. `pool_name`: the InferencePool.
    """

    def __init__(self, label_sets: int = LABEL_SETS, pool_name: str = "") -> None:
        self.registry, self.gauges = CollectorRegistry(), CollectorRegistry()
        self.pool_name = pool_name
        self._said: set[Pick] = set()
        """Picks under way whose answer said how many tokens the prompt has."""
        self._queued: dict[InferenceRequest, RequestTally] = {}
        """The requests that wait, with the tally that counted them."""
        self._not_renamed = 0
        self._anything_queued = False
        self.flow_control = FlowControlTally()
        self.picks: dict[tuple[str, str], int] = {}
        """By endpoint; its reader drops those that are gone."""
        self.on_usage: list[Callable[[InferenceRequest, int | None, int | None], None]] = []
        """Called with how many tokens a prompt and its answer have, as far as the answer says it."""
        self._tallies = RequestTallies(label_sets)
        self._scheduler = Histogram(STEP_BUCKETS)
        self.registry.register(self)

    def picked(self, pick: Pick, now: float) -> None:
        if now >= self._tallies.sweep_at:
            self._tallies.sweep(now)
        tally = self._tally(pick)
        tally.used_at = now
        tally.requests += 1
        tally.running += 1
        picks = self.picks
        for endpoint in pick.in_flight_at:
            picks[endpoint.key] = picks.get(endpoint.key, 0) + 1
        if self.flow_control.enabled:
            tally.histograms.at_once += 1  # `dequeued` took it back for one that waited
            self.flow_control.count(DISPATCHED, pick.request.priority)
        if pick.request.body_size:
            tally.histograms.request_bytes.observe(pick.request.body_size)

    def rejected(self, rejection: Rejection, now: float) -> None:
        """Count an error. The labels stay empty: the values of a rejected request cannot be trusted."""
        tally = self._tallies.nobody()
        tally.requests += 1
        tally.fail(_ERROR_CODES.get(rejection.status, "Internal"))

    def evicted(self, pick: Pick, rejection: Rejection, now: float) -> None:
        """Count an error of a request that was counted when it was picked."""
        self._tally(pick).fail(_ERROR_CODES.get(rejection.status, "Internal"))

    def responded(self, pick: Pick, status: int, now: float) -> None:
        """Count an answer of 400 or more."""
        if status >= 400:
            self._tally(pick).fail("ModelServerError")

    def read_answer(
        self, pick: Pick, head: ResponseHead, started: float, now: float
    ) -> ResponseBodyReader | None:
        """An `epp.ext_proc.response_body.ResponseReaderOpener`: measures the answer while it passes."""
        streaming = pick.request.streaming
        counted = partial(self._answered, pick)
        return AnswerMeter(
            self._tally(pick).histograms, head, asked_to_stream=streaming, started=started, counted=counted
        )

    def read_usage(
        self, pick: Pick, head: ResponseHead, started: float, now: float
    ) -> ResponseBodyReader | None:
        """A ResponseReaderOpener for answers that come although nobody asked for them."""
        return open_prompt_meter(head, partial(self._said_input, pick))

    def _said_input(self, pick: Pick, tokens: int) -> None:
        self._said.add(pick)
        self._tally(pick).histograms.input_tokens.observe(tokens)

    def _answered(self, pick: Pick, usage: Usage) -> None:
        if usage.input:
            self._said.add(pick)
        if usage.cached is not None:
            for producer in pick.producers:
                if isinstance(producer, DeliveryFollower):
                    producer.delivered(pick.request, usage.cached)
        for told in self.on_usage:
            told(pick.request, usage.input, usage.output)

    def not_renamed(self) -> None:
        self._not_renamed += 1

    def released(self, pick: Pick, started: float, now: float) -> None:
        tally = self._tally(pick)
        tally.running -= 1
        tally.histograms.durations.observe(max(0.0, now - started))
        if pick in self._said:
            self._said.remove(pick)
        elif pick.request.prompt_size:
            tally.histograms.input_tokens.observe(pick.request.prompt_tokens)

    def queued(self, request: InferenceRequest, now: float) -> None:
        self._anything_queued = True
        tally = self._queued[request] = self._tallies.of(request)
        tally.used_at = now
        tally.queued += 1
        tally.queued_bytes += request.body_size

    def dequeued(self, request: InferenceRequest, how: Dequeued, waited: float, now: float) -> None:
        tally = self._queued.pop(request)
        tally.queued -= 1
        tally.queued_bytes -= request.body_size
        self.flow_control.dequeued(how, request.priority)
        if how is Dequeued.DISPATCHED and self.flow_control.enabled:
            tally.histograms.at_once -= 1
        waits = tally.histograms.waits
        durations = waits.get(how)
        if durations is None:
            durations = waits[how] = Histogram(QUEUE_BUCKETS)
        durations.observe(waited)

    def turned_away(self, request: InferenceRequest, rejection: Rejection, now: float) -> None:
        self.flow_control.turned_away(rejection, request.priority)

    def enqueued(self, request: InferenceRequest, seconds: float) -> None:
        """Observe how long it took to queue a request."""
        tally = self._queued.get(request)
        if tally is not None:
            histograms = tally.histograms
            if histograms.enqueued is None:
                histograms.enqueued = Histogram(STEP_BUCKETS)
            histograms.enqueued.observe(seconds)

    def scheduled(self, seconds: float) -> None:
        """Observe the duration of one pick."""
        self._scheduler.observe(seconds)

    def collect(self) -> Iterator[Metric]:
        """The current numbers as metric families; prometheus_client calls this."""
        tallies, histograms = self._tallies.current(), self._tallies.histograms()
        yield from request_metrics(tallies, histograms)
        yield CounterMetricFamily(
            PREFIX + "model_rewrite_answers_not_renamed",
            "Answers that passed with the worker's name for the model, since reading them took too much work.",
            self._not_renamed,
        )
        for prefix in (PREFIX, EXTENSION_PREFIX):
            name, help_text = "scheduler_e2e_duration_seconds", "From the complete request to the pick."
            yield histogram(prefix + name, help_text, of=self._scheduler)
        if self._anything_queued or self.flow_control.enabled:
            yield from queue_families(tallies, histograms, self.pool_name)
        if self.flow_control.enabled:
            yield from self.flow_control.families(self.pool_name)

    def _tally(self, pick: Pick) -> RequestTally:
        """The tally that counted the pick first, so that every gauge returns to 0."""
        tally = pick.observer_state
        if not isinstance(tally, RequestTally):
            pick.observer_state = tally = self._tallies.of(pick.request)
        return tally
