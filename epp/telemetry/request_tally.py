"""The counts of requests by their labels, in a bounded number of sets. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from adsum.histogram import Histogram
from epp.plugins.labels import OTHER, RequestLabels, label_value
from epp.request.inference_request import InferenceRequest
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

    __slots__ = (
        "answers",
        "at_once",
        "durations",
        "enqueued",
        "input_tokens",
        "labels",
        "request_bytes",
        "waits",
    )

    def __init__(self, labels: RequestLabels) -> None:
        self.labels = labels
        self.durations = Histogram(DURATIONS)
        self.request_bytes = Histogram(REQUEST_BYTES)
        self.input_tokens = Histogram(TOKENS)
        self.answers: dict[str, Histogram] = {}
        """What only answers say, by name of the family."""
        self.waits: dict[Dequeued, Histogram] = {}
        self.at_once = 0
        self.enqueued: Histogram | None = None


class RequestTally:
    """The counts of one set of labels. `used_at`: when its last request came, in seconds.

    `queued`, `queued_bytes`: requests that wait for admission.
    """

    __slots__ = (
        "errors",
        "histograms",
        "labels",
        "queued",
        "queued_bytes",
        "requests",
        "running",
        "used_at",
    )

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
