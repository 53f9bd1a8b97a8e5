"""The figures of a run, alike for virtual and for real time."""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Answer:
    """One request; seconds from the start of the run. `first`: its first token; the same as `ended` where nobody sees it.

    `cached`: tokens of its prompt that the worker had. `failed`: there was no whole answer.
    """

    at: float
    first: float
    ended: float
    worker: str
    prompt: int
    cached: int
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Figures:
    """Seconds; `hits`: the share of all prompts that was cached; `largest`: the share of requests of one worker; `failed`:
    requests without a whole answer, which count in no other figure.
    """

    ttft: float
    e2e_p50: float
    e2e_p90: float
    hits: float
    largest: float
    failed: float = 0

    @classmethod
    def of(cls, every: Sequence[Answer]) -> "Figures":
        answers = [one for one in every if not one.failed]
        e2e = statistics.quantiles([one.ended - one.at for one in answers], n=10, method="inclusive")
        workers = Counter(one.worker for one in answers)
        return cls(
            ttft=statistics.fmean(one.first - one.at for one in answers),
            e2e_p50=e2e[4],
            e2e_p90=e2e[8],
            hits=sum(one.cached for one in answers) / sum(one.prompt for one in answers),
            largest=max(workers.values()) / len(answers),
            failed=len(every) - len(answers),
        )

    def row(self) -> str:
        """Returns cells of a Markdown table."""
        seconds = f"{self.ttft:.2f} s | {self.e2e_p50:.2f} s | {self.e2e_p90:.2f} s"
        return f"{seconds} | {self.hits:.2f} | {self.largest:.0%} | {self.failed:.0f}"


def median(runs: Sequence[Figures]) -> Figures:
    """Returns the median of each figure separately."""
    return Figures(
        **{name: statistics.median(getattr(one, name) for one in runs) for name in Figures.__slots__}
    )
