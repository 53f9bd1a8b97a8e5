"""What is counted of an answer that is read: tokens, sizes and times, in the Go picker's buckets. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from adsum.histogram import Histogram
from epp.response.usage import Usage
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
    histogram = histograms.answers.get(name)
    if histogram is None:
        histogram = histograms.answers[name] = Histogram(BOUNDS[name])
    histogram.observe(max(0.0, value))


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
