"""The counts of requests by their labels, in a bounded number of sets; and what is measured of an answer while it passes.

With `--usage-metrics` an `AnswerMeter` measures it. Without it, `PromptMeter` reads the end of what passes through the picker anyway.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final

from adsum.histogram import Histogram
from epp.ext_proc.response_body import ResponseHead
from epp.plugins.labels import OTHER, RequestLabels, label_value
from epp.request.body import Buffer
from epp.request.inference_request import InferenceRequest
from epp.response.usage import NO_USAGE, Usage
from epp.response.usage_reader import UsageReader, read_end
from epp.scheduling.waiting import Dequeued

LABEL_SETS: Final = 1000
"""Distinct sets of labels that clients can create; later ones are counted under "other"."""
LABEL_BYTES: Final = 48 * 1024
"""Bytes of text in these labels: each has several lines on the page."""
HISTOGRAM_SETS: Final = 60
"""Sets of labels with histograms of their own, which are 86 lines of the page, and with --usage-metrics 243."""
SHARED_HISTOGRAM_SETS: Final = 80
"""With the sets that all other fairness ids of a model share; what exceeds these is "other"."""
HISTOGRAM_LABEL_BYTES: Final = 4 * 1024
"""Bytes of text in the labels of histograms."""
UNUSED_AFTER: Final = 3600.0
"""Seconds without a request after which a set of labels is dropped."""
UNUSED_AFTER_AT_LIMIT: Final = 300.0
"""The same while there are LABEL_SETS, to make room for new ones."""
SWEEP_INTERVAL: Final = 10.0
"""Seconds."""
NO_LABELS: Final = ("", "", "", "")

DURATIONS: Final[Sequence[float]] = (  # mypyc 2.4 takes a Final tuple that begins with floats for unset
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60,
    120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600,
)  # fmt: skip
QUEUE_BUCKETS: Final[Sequence[float]] = (
    0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60,
)  # fmt: skip
STEP_BUCKETS: Final[Sequence[float]] = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
REQUEST_BYTES: Final = tuple(2**power for power in range(6, 31))
TOKENS: Final = (
    1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32778, 65536, 131072, 262144, 524288, 1048576,
)  # fmt: skip
"""32778 is the Go picker's, not 32768: buckets are compared with what it has counted."""


class RequestHistograms:
    """The histograms of one set of labels, or of several that share them.

    `waits`: durations of past waits, by outcome. `at_once`: requests that passed flow control without a wait. `enqueued`: how
    long it took to queue one.
    """

    def __init__(self, labels: RequestLabels) -> None:
        self.labels = labels
        self.durations = Histogram(DURATIONS)
        self.request_bytes = Histogram(REQUEST_BYTES)
        self.input_tokens = Histogram(TOKENS)
        self.answers: dict[str, Histogram] = {}
        """The numbers that only answers give, by name of the family."""
        self.waits: dict[Dequeued, Histogram] = {}
        self.at_once = 0
        self.enqueued: Histogram | None = None


class RequestTally:
    """The counts of one set of labels. `used_at`: when its last request came, in seconds.

    `queued`, `queued_bytes`: requests that wait for admission.
    """

    def __init__(self, labels: RequestLabels, histograms: RequestHistograms) -> None:
        self.labels = labels
        self.histograms = histograms
        self.used_at = 0.0
        self.requests = 0
        self.running = 0
        self.errors: dict[str, int] = {}
        self.queued = 0
        self.queued_bytes = 0

    def fail(self, code: str) -> None:
        self.errors[code] = self.errors.get(code, 0) + 1


class RequestTallies:
    """The tallies by labels, at most `limit` and one of "other" for each priority, which clients do not choose.

    Only the first HISTOGRAM_SETS have histograms of their own; the others share those of their model, or of "other".
    """

    def __init__(self, limit: int = LABEL_SETS) -> None:
        self._limit = limit
        self._tallies: dict[RequestLabels, RequestTally] = {}
        self._label_bytes = 0
        self._histograms: dict[RequestLabels, RequestHistograms] = {}
        self._histogram_label_bytes = 0
        self._shortcuts: dict[tuple[str | None, str, str, int], RequestTally] = {}
        """By `rewritten_from`, model, fairness id and priority; only tallies whose labels have these values unchanged."""
        self.sweep_at = 0.0
        """When to sweep next."""

    def current(self) -> Mapping[RequestLabels, RequestTally]:
        """A copy: pages are rendered in another thread."""
        return self._tallies.copy()

    def histograms(self) -> list[RequestHistograms]:
        """All that are kept, without repetition: label sets beyond the limit share theirs."""
        return list(self._histograms.copy().values())

    def nobody(self) -> RequestTally:
        """The tally of requests whose labels cannot be trusted."""
        return self._tallies.get(NO_LABELS) or self._add(NO_LABELS)

    def of(self, request: InferenceRequest) -> RequestTally:
        named, model, fairness_id = request.rewritten_from, request.model, request.fairness_id
        found = self._shortcuts.get((named, model, fairness_id, request.priority))
        return found or self._of_labels(request)

    def _of_labels(self, request: InferenceRequest) -> RequestTally:
        """The tally of these values. Beyond the limit only the priority is kept: clients do not choose that."""
        named, model, fairness_id = request.rewritten_from, request.model, request.fairness_id
        values = (model if named is None else named, model, fairness_id)
        labels = (
            label_value(values[0]),
            label_value(values[1]),
            label_value(values[2]),
            str(request.priority),
        )
        unchanged = labels[:3] == values
        if labels not in self._tallies and self._is_full:
            unchanged, labels = False, (OTHER, OTHER, OTHER, labels[-1])
        tally = self._tallies.get(labels) or self._add(labels)
        if unchanged:
            self._shortcuts[named, model, fairness_id, request.priority] = tally
        return tally

    @property
    def _is_full(self) -> bool:
        return len(self._tallies) >= self._limit or self._label_bytes >= LABEL_BYTES

    def _add(self, labels: RequestLabels) -> RequestTally:
        tally = self._tallies[labels] = RequestTally(labels, self._histograms_of(labels))
        self._label_bytes += _bytes_of(labels)
        return tally

    def _histograms_of(self, labels: RequestLabels) -> RequestHistograms:
        """Its own while there is room, else those of its model, else those of "other"."""
        model, target, _, priority = labels
        of_model = (model, target, OTHER, priority)
        for shared, limit in ((labels, HISTOGRAM_SETS), (of_model, SHARED_HISTOGRAM_SETS)):
            if (found := self._histograms.get(shared)) is not None:
                return found
            if len(self._histograms) < limit and self._histogram_label_bytes < HISTOGRAM_LABEL_BYTES:
                return self._add_histograms(shared)
        rest = (OTHER, OTHER, OTHER, priority)
        return self._histograms.get(rest) or self._add_histograms(rest)

    def _add_histograms(self, labels: RequestLabels) -> RequestHistograms:
        added = self._histograms[labels] = RequestHistograms(labels)
        self._histogram_label_bytes += _bytes_of(labels)
        return added

    def sweep(self, now: float) -> None:
        """Drop unused tallies. Pages are rendered in another thread, hence the new dicts."""
        self.sweep_at = now + SWEEP_INTERVAL
        unused = now - (UNUSED_AFTER_AT_LIMIT if self._is_full else UNUSED_AFTER)
        kept = {
            labels: tally
            for labels, tally in self._tallies.items()
            if tally.running > 0
            or tally.queued > 0
            or tally.used_at > unused
            or labels[1] == OTHER
            or labels == NO_LABELS
        }
        if len(kept) < len(self._tallies):
            self._tallies = kept
            self._label_bytes = sum(map(_bytes_of, kept))
            self._histograms = {tally.histograms.labels: tally.histograms for tally in kept.values()}
            self._histogram_label_bytes = sum(map(_bytes_of, self._histograms))
            self._shortcuts = {key: tally for key, tally in self._shortcuts.items() if tally.labels in kept}


def _bytes_of(labels: RequestLabels) -> int:
    return sum([len(label.encode()) for label in labels])


RESPONSE_BYTES: Final = "response_size_bytes"
OUTPUT: Final = "request_output_tokens"
CACHED: Final = "request_cached_tokens"
TTFT: Final = "request_ttft_seconds"
TTFT_STREAMED: Final = "request_ttft_seconds of streams"
NTPOT: Final = "request_ntpot_seconds"
TPOT: Final = "request_streaming_tpot_seconds"
ITL: Final = "request_streaming_itl_seconds"

_TTFT_BOUNDS: Final = (
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60, 120,
)  # fmt: skip
BOUNDS: Final[Mapping[str, Sequence[float]]] = {
    RESPONSE_BYTES: (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32778, 65536),
    OUTPUT: (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192),
    CACHED: TOKENS,
    TTFT: _TTFT_BOUNDS,
    TTFT_STREAMED: _TTFT_BOUNDS,
    NTPOT: (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10),
    TPOT: (
        0.0005, 0.00205, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1, 2,
    ),
    ITL: (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2),
}  # fmt: skip


def observe(histograms: RequestHistograms, name: str, value: float) -> None:
    _histogram(histograms, name).observe(max(0.0, value))


def _histogram(histograms: RequestHistograms, name: str) -> Histogram:
    histogram = histograms.answers.get(name)
    if histogram is None:
        histogram = histograms.answers[name] = Histogram(BOUNDS[name])
    return histogram


def observe_usage(
    histograms: RequestHistograms, usage: Usage, *, streamed: bool, started: float, first: float, now: float
) -> None:
    """Count a complete answer. `started`, `first`, `now`: when its request, its first and its last byte came.

    As in the Go picker: an answer that is not streamed comes as a whole, so its first token comes with its last one.
    """
    if usage.input:
        histograms.input_tokens.observe(usage.input)
    if usage.cached is not None:
        observe(histograms, CACHED, usage.cached)
    observe(histograms, TTFT_STREAMED if streamed else TTFT, (first if streamed else now) - started)
    if usage.output:
        observe(histograms, OUTPUT, usage.output)
        observe(histograms, NTPOT, (now - started) / usage.output)
        if streamed and usage.output > 1:
            observe(histograms, TPOT, (now - first) / (usage.output - 1))


_EVENTS: Final = "text/event-stream"
END: Final = 2048
"""Bytes of an answer that a `PromptMeter` reads, and half of what it holds. A usage has up to 500, and little comes after it."""


def _is_readable(head: ResponseHead) -> bool:
    kind = head.media_type
    return not head.encoded and (kind in ("", _EVENTS) or kind.endswith("json"))


def _is_served(head: ResponseHead) -> bool:
    return head.status is not None and 200 <= head.status < 300


def open_prompt_meter(head: ResponseHead, counted: Callable[[int], None]) -> "PromptMeter | None":
    """None: the answer says no tokens, or none that can be read."""
    return PromptMeter(counted) if _is_served(head) and _is_readable(head) else None


class PromptMeter:
    """A ResponseBodyReader that changes nothing: `counted` gets the tokens of the prompt at the end of a whole answer."""

    changes_body: ClassVar[bool] = False
    __slots__ = ("_counted", "_end")

    def __init__(self, counted: Callable[[int], None]) -> None:
        self._counted = counted
        self._end = bytearray()

    def read(self, piece: Buffer, now: float) -> None:
        self._end += piece[-END:]
        if len(self._end) > 2 * END:  # not for each piece
            del self._end[:-END]

    def end(self, now: float) -> bytes:
        usage = read_end(bytes(self._end[-END:]))
        if usage.input:
            self._counted(usage.input)
        return b""


class AnswerMeter:
    """A ResponseBodyReader that changes nothing.

    The tokens of an answer that is compressed, or neither JSON nor server-sent events, are unknown; without a 2xx
    status only the size counts. Nothing but ITL is counted of an answer that breaks off, as in the Go picker.
    `counted`: called at the end with what the answer said.
    """

    changes_body: ClassVar[bool] = False
    __slots__ = (
        "_counted",
        "_first",
        "_histograms",
        "_itl",
        "_last",
        "_served",
        "_size",
        "_started",
        "_streamed",
        "_usage",
    )

    def __init__(
        self, histograms: RequestHistograms, head: ResponseHead, *, asked_to_stream: bool, started: float,
        counted: Callable[[Usage], None],
    ) -> None:  # fmt: skip
        kind = head.media_type
        self._histograms = histograms
        self._started = started
        self._counted = counted
        self._served = _is_served(head)
        self._streamed = asked_to_stream or kind == _EVENTS
        self._usage = UsageReader(streamed=kind == _EVENTS) if _is_readable(head) and self._served else None
        self._itl: Histogram | None = None
        self._size = 0
        self._first: float | None = None
        self._last = 0.0

    def read(self, piece: Buffer, now: float) -> None:
        size = len(piece)
        if not size:
            return
        self._size += size
        if self._itl is not None:
            self._itl.observe(max(0.0, now - self._last))
        elif self._first is None:
            self._first = now
        elif self._streamed and self._served:
            self._itl = _histogram(self._histograms, ITL)
            self._itl.observe(max(0.0, now - self._last))
        self._last = now
        if self._usage is not None:
            self._usage.feed(bytes(piece))

    def end(self, now: float) -> bytes:
        observe(self._histograms, RESPONSE_BYTES, self._size)
        if self._served and self._first is not None:
            usage = NO_USAGE if self._usage is None else self._usage.end()
            times = {"started": self._started, "first": self._first, "now": now}
            observe_usage(self._histograms, usage, streamed=self._streamed, **times)
            self._counted(usage)
        return b""
