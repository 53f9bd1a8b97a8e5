"""The figures of a run, alike for virtual and for real time."""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.routing.workloads import Watched

_PERCENTILES: Final = (50, 90, 99)
HEADER: Final = "TTFT mean | p50 | p90 | p99 | e2e mean | p50 | p90 | p99 | tokens/s | cached | largest share | max/mean | failed"
"""The columns of `Figures.row`."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One request; seconds from the start of the run. `first`: its first token; the same as `ended` where nobody sees it.

    `cached`: tokens of its prompt that the worker had. `output`: tokens of the answer. `failed`: there was no whole answer.
    `apart`: another worker computed the prompt.
    """

    at: float
    first: float
    ended: float
    worker: str
    prompt: int
    cached: int
    output: int = 0
    failed: bool = False
    apart: bool = False


@dataclass(frozen=True, slots=True)
class Figures:
    """Seconds, and shares of 1. `ttft` and `e2e` alone: the mean. `tokens_per_second`: of all answers, to the end of the last.
    `hits`: the share of all prompts that was cached; `largest`: the share of the requests of the worker with the most, and
    `unevenness` how many times the mean that is; `failed`: requests without a whole answer, which count in no other figure
    but `watched`: the share of the worker that the workload watches.
    """

    ttft: float
    ttft_p50: float
    ttft_p90: float
    ttft_p99: float
    e2e: float
    e2e_p50: float
    e2e_p90: float
    e2e_p99: float
    tokens_per_second: float
    hits: float
    largest: float
    unevenness: float
    failed: float = 0.0
    watched: float = 0.0

    @classmethod
    def of(cls, every: Sequence[Answer], workers: int = 0, watched: Watched | None = None) -> "Figures":
        """`workers`: how many there are; 0: those that served."""
        answers = [one for one in every if not one.failed]
        ttft = [one.first - one.at for one in answers]
        e2e = [one.ended - one.at for one in answers]
        served = Counter(one.worker for one in answers)
        largest = max(served.values()) / len(answers)
        duration = max(one.ended for one in answers) - min(one.at for one in answers)
        return cls(
            statistics.fmean(ttft),
            *_percentiles(ttft),
            statistics.fmean(e2e),
            *_percentiles(e2e),
            tokens_per_second=sum(one.output for one in answers) / duration,
            hits=sum(one.cached for one in answers) / sum(one.prompt for one in answers),
            largest=largest,
            unevenness=largest * (workers or len(served)),
            failed=len(every) - len(answers),
            watched=0.0 if watched is None else _share(every, watched),
        )

    def row(self) -> str:
        """Returns cells of a Markdown table, those of `HEADER`."""
        ttft = (self.ttft, self.ttft_p50, self.ttft_p90, self.ttft_p99)
        e2e = (self.e2e, self.e2e_p50, self.e2e_p90, self.e2e_p99)
        seconds = " | ".join(f"{time:.2f} s" for time in (*ttft, *e2e))
        served = (
            f"{self.tokens_per_second:.0f} | {self.hits:.2f} | {self.largest:.0%} | {self.unevenness:.2f}"
        )
        return f"{seconds} | {served} | {self.failed:.0f}"


def median(runs: Sequence[Figures]) -> Figures:
    """Returns the median of each figure separately."""
    return Figures(
        **{name: statistics.median(getattr(one, name) for one in runs) for name in Figures.__slots__}
    )


def _percentiles(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    found = statistics.quantiles(values, n=100, method="inclusive")
    fifty, ninety, most = (found[percentile - 1] for percentile in _PERCENTILES)
    return fifty, ninety, most


def _share(every: Sequence[Answer], watched: Watched) -> float:
    came = [one.worker for one in every if watched.since <= one.at < watched.until]
    return came.count(f"w{watched.worker}") / max(1, len(came))
