"""The metric families of requests, under the Go picker's names and under the older names that dashboards may still use."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from prometheus_client import Metric

from adsum.histogram import Histogram
from adsum.metric_families import counter, gauge, histogram
from epp.plugins.labels import OBJECTIVE_PREFIX, OTHER, PREFIX, REQUEST_LABELS, RequestLabels
from epp.telemetry.request_tally import (
    BOUNDS,
    CACHED,
    DURATIONS,
    ITL,
    NO_LABELS,
    NTPOT,
    OUTPUT,
    REQUEST_BYTES,
    RESPONSE_BYTES,
    TOKENS,
    TPOT,
    TTFT,
    TTFT_STREAMED,
    RequestHistograms,
    RequestTally,
)

OLDER_MODELS: Final = 25
"""Pairs of models that the histograms of older names tell apart: a page of all would be twice as long for strangers' names."""
_MODELS: Final = ("model_name", "target_model_name")
Tallies: TypeAlias = Mapping[RequestLabels, RequestTally]
_Values: TypeAlias = tuple[str, ...]
Counted: TypeAlias = Sequence[RequestHistograms]
Read: TypeAlias = Callable[[RequestHistograms], Histogram | None]


@dataclass(frozen=True, slots=True)
class RequestHistogram:
    """A histogram of each set of labels. `older`: its older name, under which it has the labels of models only."""

    name: str
    help: str
    bounds: Sequence[float]
    read: Read
    older: str | None = None

    def metrics(self, counted: Counted) -> Iterator[Metric]:
        found = {
            one.labels: measured
            for one in counted
            if (measured := self.read(one)) is not None and measured.count
        }
        if not found:
            return
        yield histogram(PREFIX + self.name, self.help, REQUEST_LABELS, found.items())
        if self.older is not None:
            by_model: dict[tuple[str, ...], Histogram] = {}
            for labels, measured in found.items():
                models = (
                    labels[:2] if labels[:2] in by_model or len(by_model) < OLDER_MODELS else (OTHER, OTHER)
                )
                by_model.setdefault(models, Histogram(self.bounds)).add(measured)
            yield histogram(OBJECTIVE_PREFIX + self.older, _older(self.name), _MODELS, by_model.items())


def _of_answers(name: str, help_text: str, older: str | None = None) -> RequestHistogram:
    return RequestHistogram(
        name, help_text, BOUNDS[name], lambda histograms: histograms.answers.get(name), older
    )


HISTOGRAMS: Final[Sequence[RequestHistogram]] = (
    RequestHistogram(
        "request_duration_seconds",
        "From the request's headers to the end of its stream.",
        DURATIONS,
        lambda histograms: histograms.durations,
        "request_duration_seconds",
    ),
    RequestHistogram(
        "request_size_bytes",
        "Bodies of requests.",
        REQUEST_BYTES,
        lambda histograms: histograms.request_bytes,
        "request_sizes",
    ),
    RequestHistogram(
        "request_input_tokens",
        "Tokens of prompts, as the answer says; where it says nothing, a token for 4 bytes of the prompt.",
        TOKENS,
        lambda histograms: histograms.input_tokens,
        "input_tokens",
    ),
    _of_answers(RESPONSE_BYTES, "Bodies of complete answers.", "response_sizes"),
    _of_answers(OUTPUT, "Tokens of answers, as they say.", "output_tokens"),
    _of_answers(CACHED, "Tokens of prompts that the worker had in its prefix cache.", "prompt_cached_tokens"),
    _of_answers(
        NTPOT,
        "From the request's headers to the end of the answer, for each token of the answer.",
        "normalized_time_per_output_token_seconds",
    ),
    _of_answers(
        TPOT, "From the first to the last byte of a streamed answer, for each token after the first."
    ),
    _of_answers(ITL, "Between two pieces of a streamed answer."),
)


def request_metrics(tallies: Tallies, counted: Counted) -> Iterator[Metric]:
    yield from _counts(tallies)
    for family in HISTOGRAMS:
        yield from family.metrics(counted)
    yield from _times_to_first_token(counted)


def _counts(tallies: Tallies) -> Iterator[Metric]:
    requests = [(labels, tally.requests) for labels, tally in tallies.items()]
    errors = [
        ((*labels, code), count)
        for labels, tally in tallies.items()
        for code, count in tally.errors.copy().items()
    ]
    running = [(labels, tally.running) for labels, tally in tallies.items() if labels != NO_LABELS]
    # an older name has no label of the fairness id, and the last one no others than the model's
    of_priority, of_error, of_model = Counter[_Values](), Counter[_Values](), Counter[_Values]()
    for (model, target, _, priority), count in requests:
        of_priority[model, target, priority] += count
    for (model, target, _, _, code), count in errors:
        of_error[model, target, code] += count
    for (model, *_), count in running:
        of_model[(model,)] += count
    name, help_text = (
        "request_error",
        "Requests that the picker refused or the worker answered with 400 or more.",
    )
    yield counter(PREFIX + "request", "Requests.", REQUEST_LABELS, requests)
    yield counter(PREFIX + name, help_text, (*REQUEST_LABELS, "error_code"), errors)
    yield gauge(PREFIX + "request_running", "Requests whose stream is open.", REQUEST_LABELS, running)
    name, labels = OBJECTIVE_PREFIX + "request", (*_MODELS, "priority")
    yield counter(name, _older("request_total"), labels, of_priority.items())
    name, labels = OBJECTIVE_PREFIX + "request_error", (*_MODELS, "error_code")
    yield counter(name, _older("request_error_total"), labels, of_error.items())
    name = OBJECTIVE_PREFIX + "running_requests"
    yield gauge(name, _older("request_running"), _MODELS[:1], of_model.items())


def _times_to_first_token(counted: Counted) -> Iterator[Metric]:
    found = [
        ((*one.labels, streaming), measured)
        for one in counted
        for name, streaming in ((TTFT, "false"), (TTFT_STREAMED, "true"))
        if (measured := one.answers.get(name)) is not None
    ]
    if found:
        help_text = "From the request's headers to the first byte of the answer; of one that is not streamed, to its end."
        yield histogram(PREFIX + TTFT, help_text, (*REQUEST_LABELS, "streaming"), found)


def _older(name: str) -> str:
    return f"The older name of {PREFIX}{name}, without fairness ids."
