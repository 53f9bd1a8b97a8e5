"""Results of runs in real time: JSON lines, and the tables that they become."""

import json
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from benchmarks.process_usage import percentile
from benchmarks.routing.figures import Figures
from benchmarks.routing.live_arms import GO_ARMS
from benchmarks.routing.live_stage import Outcome
from benchmarks.routing.workloads import Workload

LATE: Final = 0.05
"""A run where one request in a hundred left later than that, in simulated seconds, is not counted."""
_RATIOS: Final = ("ttft", "ttft_p90")
_WITH_RANGE: Final = ("ttft", "ttft_p90", "e2e", "e2e_p90")
_COLUMNS: Final[Mapping[str, str]] = {
    "ttft": "TTFT mean",
    "ttft_p50": "p50",
    "ttft_p90": "p90",
    "ttft_p99": "p99",
    "e2e": "e2e mean",
    "e2e_p50": "p50",
    "e2e_p90": "p90",
    "e2e_p99": "p99",
    "tokens_per_second": "tokens/s",
    "hits": "cached",
    "largest": "largest share",
    "unevenness": "max/mean",
    "watched": "watched share",
    "failed": "failed",
}

Key: TypeAlias = tuple[str, str, int]
"""Workload, arm, seed."""


@dataclass(frozen=True, slots=True)
class Result:
    """One run. `arrivals`: the simulated seconds in which requests, or the first ones of sessions, come. `shares`: by worker,
    of all requests. `late`: p50, p99 and most.
    """

    workload: str
    arm: str
    seed: int
    speed: float
    arrivals: float
    figures: Mapping[str, float]
    late: Sequence[float]
    cores: Mapping[str, float]
    machine: float
    seconds: float
    shares: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, key: Key, speed: float, arrivals: float, workload: Workload, outcome: Outcome) -> "Result":
        served = Counter(one.worker for one in outcome.answers if not one.failed)
        return cls(
            *key,
            speed=speed,
            arrivals=arrivals,
            figures=asdict(Figures.of(outcome.answers, workload.workers, workload.watched)),
            late=[percentile(outcome.late, 0.5), percentile(outcome.late, 0.99), max(outcome.late)],
            cores=outcome.cores,
            machine=outcome.machine,
            seconds=outcome.seconds,
            shares={name: count / served.total() for name, count in sorted(served.items())},
        )

    @property
    def key(self) -> Key:
        return self.workload, self.arm, self.seed

    @property
    def too_late(self) -> bool:
        """The client did not keep its plan, so the run says nothing about pickers."""
        return self.late[1] > LATE

    def line(self) -> str:
        """For people, while it runs."""
        took = ", ".join(f"{kind} {cores:.2f}" for kind, cores in self.cores.items())
        late = "/".join(f"{1000 * seconds:.0f}" for seconds in self.late)
        return (
            f"{self.workload} | {self.arm} | seed {self.seed}: TTFT {self.figures['ttft']:.3f} s, cached "
            f"{self.figures['hits']:.2f}, failed {self.figures['failed']:.0f}; took {self.seconds:.1f} s; late {late} ms"
            f"{' (thrown out)' if self.too_late else ''}; cores: {took}, machine {self.machine:.2f}"
        )


def read(path: Path | None) -> list[Result]:
    """The results in a file; none if it is not there."""
    if path is None or not path.exists():
        return []
    return [Result(**json.loads(line)) for line in path.read_text().splitlines()]


def append(path: Path | None, result: Result) -> None:
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")


def tables(results: Sequence[Result]) -> Iterator[str]:
    """Lines of Markdown: all figures, then the ratios. Medians over seeds, with the least and the most."""
    counted = [one for one in results if not one.too_late]
    workloads = list(dict.fromkeys(one.workload for one in counted))
    arms = list(dict.fromkeys(one.arm for one in counted))
    if not counted:
        yield f"None of {len(results)} runs is counted: requests left too late."
        return
    by_arm = {
        (workload, arm): [one for one in counted if (one.workload, one.arm) == (workload, arm)]
        for workload in workloads
        for arm in arms
    }
    yield f"| workload | picker | runs | {' | '.join(_COLUMNS.values())} |"
    yield f"|---|---|---|{'---|' * len(_COLUMNS)}"
    for (workload, arm), runs in by_arm.items():
        if runs:
            yield f"| {workload} | {arm} | {len(runs)} | {' | '.join(_cell(runs, name) for name in _COLUMNS)} |"
    yield ""
    yield from _ratios(by_arm, workloads, [arm for arm in arms if arm not in GO_ARMS])
    cores = _median_and_most([sum(one.cores.values()) for one in counted])
    machine = _median_and_most([one.machine for one in counted])
    yield f"\nThe programs of a run used {cores} cores, and all of the machine {machine}."
    if thrown := len(results) - len(counted):
        yield f"\n{thrown} runs are thrown out: a request in a hundred left more than {1000 * LATE:.0f} ms late."


def _ratios(
    by_arm: Mapping[tuple[str, str], Sequence[Result]], workloads: Sequence[str], ours: Sequence[str]
) -> Iterator[str]:
    yield "To the better of the Go picker's configurations (the ratios of single seeds in brackets):"
    yield ""
    yield "| workload | picker | TTFT mean | TTFT p90 | the better one of the Go picker |"
    yield "|---|---|---|---|---|"
    for workload in workloads:
        theirs = [runs for arm in GO_ARMS if (runs := by_arm.get((workload, arm)))]
        for arm in ours:
            if theirs and (runs := by_arm[workload, arm]):
                found = [_ratio(runs, theirs, name) for name in _RATIOS]
                better = ", ".join(dict.fromkeys(name for _, name in found))
                yield f"| {workload} | {arm} | {' | '.join(ratio for ratio, _ in found)} | {better} |"


def _ratio(runs: Sequence[Result], theirs: Sequence[Sequence[Result]], name: str) -> tuple[str, str]:
    better = min(theirs, key=lambda of_one: _median(of_one, name))
    of_seed = {one.seed: one.figures[name] for one in better}
    single = [one.figures[name] / of_seed[one.seed] for one in runs if of_seed.get(one.seed)]
    both = f"{min(single):.2f}-{max(single):.2f}" if single else "no seed in both"
    return f"{_median(runs, name) / _median(better, name):.2f} ({both})", better[0].arm


def _median(runs: Sequence[Result], name: str) -> float:
    return statistics.median(one.figures[name] for one in runs)


def _cell(runs: Sequence[Result], name: str) -> str:
    values = [one.figures[name] for one in runs]
    both = f" ({_number(min(values))}-{_number(max(values))})" if name in _WITH_RANGE else ""
    return _number(statistics.median(values)) + both


def _number(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"


def _median_and_most(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1f} (at most {max(values):.1f})"
