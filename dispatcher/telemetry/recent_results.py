"""The results of requests in the last minutes, by queue: samples of the counters, taken every few seconds.

Requests cost nothing more for it: they only count, as before.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from dispatcher.telemetry.metrics import DispatcherTelemetry, QueueCounters

STEP: Final = 5.0
"""Seconds between two samples."""
STEPS: Final = 60
"""How many are kept: five minutes."""
_NAMES: Final = {
    "succeeded": "successful_requests",
    "failed": "failed_requests",
    "expired": "exceeded_deadline_requests",
    "retries": "request_retries",
    "shed": "shedded_requests",
}


@dataclass(frozen=True, slots=True)
class RecentCounts:
    """Counts of one queue in this process. `steps`: for each `STEP` seconds how many succeeded and how many did not, the newest last."""

    counts: dict[str, int]
    latency: dict[str, float | None]
    """Seconds from an attempt to its answer: p50 and p95; None if nothing was answered."""
    steps: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class _CounterSample:
    counts: dict[str, int]
    latencies: tuple[tuple[str, int], ...]


class RecentResults:
    """`sample` is to be called every `STEP` seconds."""

    def __init__(self, telemetry: DispatcherTelemetry) -> None:
        self._telemetry = telemetry
        self._samples: deque[dict[tuple[str, str], _CounterSample]] = deque(maxlen=STEPS)

    def sample(self) -> None:
        self._samples.append(
            {labels[1:]: _sample(counts) for labels, counts in self._telemetry.queues.items()}
        )

    def of(self, queue: str, target: str) -> RecentCounts:
        """Since the oldest sample that is kept."""
        key = queue, target
        counters = self._telemetry.queues.get((queue, *key))
        now = _sample(counters) if counters is not None else _NOTHING
        samples = [*(one.get(key, _NOTHING) for one in self._samples), now]
        if len(self._samples) < STEPS:
            samples.insert(0, _NOTHING)  # all that this process has counted
        first = samples[0]
        counts = {name: now.counts[name] - first.counts[name] for name in _NAMES}
        steps = [_ended(after, before) for before, after in pairwise(samples)]
        latency = {f"p{percent}": _quantile(percent / 100, first, now) for percent in (50, 95)}
        return RecentCounts(counts, latency, steps)


def _sample(counters: QueueCounters) -> _CounterSample:
    counts = {name: counters.counters[metric] for name, metric in _NAMES.items()}
    return _CounterSample(counts, tuple(counters.inference_ms.buckets()))


_NOTHING: Final = _CounterSample(dict.fromkeys(_NAMES, 0), ())


def _ended(after: _CounterSample, before: _CounterSample) -> tuple[int, int]:
    succeeded = after.counts["succeeded"] - before.counts["succeeded"]
    others = ("failed", "expired")
    return succeeded, sum(after.counts[name] - before.counts[name] for name in others)


def _quantile(share: float, before: _CounterSample, after: _CounterSample) -> float | None:
    """In seconds, as Prometheus' histogram_quantile: linear within a bucket, the last bound for what is above it."""
    earlier = dict(before.latencies)
    buckets = [(bound, count - earlier.get(bound, 0)) for bound, count in after.latencies]
    if not buckets or not buckets[-1][1]:
        return None
    rank, lower, below = share * buckets[-1][1], 0.0, 0
    for bound, count in buckets:
        if bound == "+Inf":
            break
        if count >= rank and count > below:
            return (lower + (float(bound) - lower) * (rank - below) / (count - below)) / 1000
        lower, below = float(bound), count
    return lower / 1000
