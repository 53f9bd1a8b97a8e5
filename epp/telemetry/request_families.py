"""The metric families of requests, under the Go picker's names and under the older names that dashboards may still use."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from adsum.histogram import Histogram
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
            one.labels: histogram
            for one in counted
            if (histogram := self.read(one)) is not None and histogram.count
        }
        if not found:
            return
        yield _histograms(PREFIX + self.name, self.help, REQUEST_LABELS, found.items())
        if self.older is not None:
            by_model: dict[tuple[str, ...], Histogram] = {}
            for labels, histogram in found.items():
                models = (
                    labels[:2] if labels[:2] in by_model or len(by_model) < OLDER_MODELS else (OTHER, OTHER)
                )
                by_model.setdefault(models, Histogram(self.bounds)).add(histogram)
            yield _histograms(OBJECTIVE_PREFIX + self.older, _older(self.name), _MODELS, by_model.items())


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
    requests = CounterMetricFamily(PREFIX + "request", "Requests.", labels=REQUEST_LABELS)
    errors = CounterMetricFamily(
        PREFIX + "request_error",
        "Requests that the picker refused or the worker answered with 400 or more.",
        labels=(*REQUEST_LABELS, "error_code"),
    )
    running = GaugeMetricFamily(
        PREFIX + "request_running", "Requests whose stream is open.", labels=REQUEST_LABELS
    )
    of_priority, of_error, of_model = _Sums(), _Sums(), _Sums()
    for labels, tally in tallies.items():
        model, target, _, priority = labels
        requests.add_metric(labels, tally.requests)
        of_priority.add((model, target, priority), tally.requests)
        for code, count in tally.errors.copy().items():
            errors.add_metric((*labels, code), count)
            of_error.add((model, target, code), count)
        if labels != NO_LABELS:
            running.add_metric(labels, tally.running)
            of_model.add((model,), tally.running)
    yield from (requests, errors, running)
    yield of_priority.fill(
        CounterMetricFamily(
            OBJECTIVE_PREFIX + "request", _older("request_total"), labels=(*_MODELS, "priority")
        )
    )
    yield of_error.fill(
        CounterMetricFamily(
            OBJECTIVE_PREFIX + "request_error", _older("request_error_total"), labels=(*_MODELS, "error_code")
        )
    )
    yield of_model.fill(
        GaugeMetricFamily(
            OBJECTIVE_PREFIX + "running_requests", _older("request_running"), labels=_MODELS[:1]
        )
    )


class _Sums:
    """Sums over the labels that an older name does not have."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, ...], int] = {}

    def add(self, labels: tuple[str, ...], count: int) -> None:
        self._sums[labels] = self._sums.get(labels, 0) + count

    def fill(self, family: CounterMetricFamily | GaugeMetricFamily) -> Metric:
        for labels, total in self._sums.items():
            family.add_metric(labels, total)
        return family


def _times_to_first_token(counted: Counted) -> Iterator[Metric]:
    family = HistogramMetricFamily(
        PREFIX + TTFT,
        "From the request's headers to the first byte of the answer; of one that is not streamed, to its end.",
        labels=(*REQUEST_LABELS, "streaming"),
    )
    for one in counted:
        for name, streaming in ((TTFT, "false"), (TTFT_STREAMED, "true")):
            histogram = one.answers.get(name)
            if histogram is not None:
                family.add_metric((*one.labels, streaming), histogram.buckets(), histogram.total)
    if family.samples:
        yield family


def _histograms(
    name: str, help_text: str, labels: Sequence[str], found: Iterable[tuple[Sequence[str], Histogram]]
) -> Metric:
    family = HistogramMetricFamily(name, help_text, labels=labels)
    for values, histogram in found:
        family.add_metric(values, histogram.buckets(), histogram.total)
    return family


def _older(name: str) -> str:
    return f"The older name of {PREFIX}{name}, without fairness ids."
