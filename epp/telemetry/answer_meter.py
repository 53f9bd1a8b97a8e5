"""Measures one answer while it passes: its size, its times, and the tokens that it says were used.

With `--usage-metrics` that is `AnswerMeter`. Without it, `PromptMeter` reads the end of what passes through the picker anyway.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from adsum.histogram import Histogram
from epp.ext_proc.response_body import ResponseHead
from epp.request.body import Buffer
from epp.response.usage import NO_USAGE, Usage
from epp.response.usage_reader import UsageReader, read_end
from epp.telemetry.request_tally import TOKENS, RequestHistograms

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

    __slots__ = ("_counted", "_end")

    def __init__(self, counted: Callable[[int], None]) -> None:
        self._counted = counted
        self._end = bytearray()

    @property
    def changes_body(self) -> bool:
        return False

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

    @property
    def changes_body(self) -> bool:
        return False

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
