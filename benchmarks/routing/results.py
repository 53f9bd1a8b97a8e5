"""Results of runs in virtual time: JSON lines, and the tables that they become."""

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, TypeAlias

from benchmarks.routing.figures import Figures, median
from benchmarks.routing.machines import OURS
from benchmarks.routing.workloads import WORKLOADS

ORACLE: Final = "oracle"
RunKey: TypeAlias = tuple[str, str, int, float | None, float | None, str]
"""Workload, arm, seed, rate and seconds of arrivals (None: the workload's own), and the machine."""


@dataclass(frozen=True, slots=True)
class VirtualResult:
    """One run; `rate` and `seconds` None: the workload's own."""

    workload: str
    arm: str
    seed: int
    rate: float | None
    seconds: float | None
    figures: Figures
    machine: str = OURS

    @property
    def key(self) -> RunKey:
        return self.workload, self.arm, self.seed, self.rate, self.seconds, self.machine

    def line(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, line: str) -> "VirtualResult":
        """What `line` wrote. Raises ValueError, KeyError and TypeError for anything else."""
        fields = json.loads(line)
        return cls(**{**fields, "figures": Figures(**fields["figures"])})


def read(path: Path) -> list[VirtualResult]:
    """The results in a file; none if there is no such file. ValueError, with the line's number, for another kind of line."""
    if not path.exists():
        return []
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            found.append(VirtualResult.read(line))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path}, line {number} is not a result of `python -m benchmarks routing --out`: {error!r}; give another file"
            ) from error
    return found


def tables(results: Iterable[VirtualResult]) -> Iterator[str]:
    """Lines of Markdown: for each workload and rate a table with medians over the seeds and, in brackets, their range."""
    groups: dict[tuple[str, float | None], dict[str, dict[int, Figures]]] = {}
    for one in results:
        groups.setdefault((one.workload, one.rate), {}).setdefault(one.arm, {})[one.seed] = one.figures
    for (workload, rate), arms in groups.items():
        seeds = {len(runs) for runs in arms.values()}
        at = "" if rate is None else f", {rate:g} a second"
        use = "used for tuning" if WORKLOADS[workload].tuning else "only verifies"
        yield ""
        yield f"{workload}{at} ({use}; {'/'.join(map(str, sorted(seeds)))} seeds)"
        yield ""
        yield from _table(arms, watched=WORKLOADS[workload].watched is not None)


def machines_table(results: Sequence[VirtualResult]) -> Iterator[str]:
    """Lines of Markdown: a row for each machine and workload, a column for each arm; TTFT mean, medians over the seeds, and in
    brackets the median and the range of its ratios to the oracle on the same seed. The last row is the median and the worst
    of all ratios above.
    """
    cells: dict[tuple[str, str], dict[str, dict[int, Figures]]] = {}
    for one in results:
        cells.setdefault((one.machine, one.workload), {}).setdefault(one.arm, {})[one.seed] = one.figures
    names = list(dict.fromkeys(one.arm for one in results))
    yield f"| machine | workload | {' | '.join(names)} |"
    yield "|---" * (2 + len(names)) + "|"
    found: dict[str, list[float]] = {}
    for (machine, workload), arms in cells.items():
        row = []
        for name in names:
            runs, oracle = arms[name], arms.get(ORACLE, {})
            text = f"{statistics.median(one.ttft for one in runs.values()):.2f} s"
            if name != ORACLE and (ratios := ratios_of(runs, oracle)):
                found.setdefault(name, []).append(statistics.median(ratios))
                text += f" ({found[name][-1]:.2f}; {min(ratios):.2f} to {max(ratios):.2f})"
            row.append(text)
        yield f"| {machine} | {workload} | {' | '.join(row)} |"
    of_all = [
        f"{statistics.median(found[name]):.2f}, {max(found[name]):.2f}" if name in found else ""
        for name in names
    ]
    yield f"| all | median, worst | {' | '.join(of_all)} |"


def _table(arms: Mapping[str, Mapping[int, Figures]], *, watched: bool) -> Iterator[str]:
    oracle = arms.get(ORACLE, {})
    columns = [
        "picked by",
        "TTFT mean (range)",
        "to the oracle",
        "TTFT p50",
        "p90",
        "p99",
        "e2e mean",
        "p50",
        "p90",
        "p99",
    ]
    columns += [
        "tokens/s",
        "cached",
        "largest share",
        "max/mean",
        "failed",
        *(["watched"] if watched else []),
    ]
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    for name, runs in sorted(arms.items(), key=lambda arm: median([*arm[1].values()]).ttft):
        yield f"| {' | '.join([name, *_cells(runs, oracle, watched=watched)])} |"


def _cells(runs: Mapping[int, Figures], oracle: Mapping[int, Figures], *, watched: bool) -> Iterator[str]:
    found, means = median([*runs.values()]), [one.ttft for one in runs.values()]
    yield f"{found.ttft:.2f} s ({min(means):.2f} to {max(means):.2f})"
    ratio = ratio_of(runs, oracle)
    yield "" if ratio is None else f"{ratio:.2f}"
    for seconds in (found.ttft_p50, found.ttft_p90, found.ttft_p99):
        yield f"{seconds:.2f} s"
    for seconds in (found.e2e, found.e2e_p50, found.e2e_p90, found.e2e_p99):
        yield f"{seconds:.2f} s"
    yield f"{found.tokens_per_second:.0f}"
    yield f"{found.hits:.2f}"
    yield f"{found.largest:.0%}"
    yield f"{found.unevenness:.2f}"
    yield f"{found.failed:g}"
    if watched:
        yield f"{found.watched:.0%}"


def ratio_of(runs: Mapping[int, Figures], others: Mapping[int, Figures]) -> float | None:
    """The median, over the seeds that both have, of the ratio of their mean TTFTs; None: they have no seed in common."""
    ratios = ratios_of(runs, others)
    return statistics.median(ratios) if ratios else None


def ratios_of(runs: Mapping[int, Figures], others: Mapping[int, Figures]) -> list[float]:
    """The ratios of their mean TTFTs, for the seeds that both have."""
    return [runs[seed].ttft / others[seed].ttft for seed in runs if seed in others]


def knees(found: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """Lines of Markdown: by arm, the knee of each seed."""
    yield "| picked by | knee, requests/s (range) |"
    yield "|---|---|"
    for name, rates in sorted(found.items(), key=lambda arm: -statistics.median(arm[1])):
        yield f"| {name} | {statistics.median(rates):.1f} ({min(rates):.1f} to {max(rates):.1f}) |"
