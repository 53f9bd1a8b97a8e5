"""Reads and writes the measurements as JSON, prints them as tables, and compares them with the targets."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from benchmarks.picking.envoys import ALONE
from benchmarks.picking.rounds import Cost

Costs: TypeAlias = dict[str, "Figure"]
KIBIBYTE: Final = 1024
MEBIBYTE: Final = 1024 * KIBIBYTE
_OUR_NAMES: Final = ("http2", "compiled")
"""Of pickers on our own HTTP/2 server."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One picker on one workload. `cpu` in µs per request, `p50` and `p99` in µs, `idle` in cores."""

    cpu: float
    p50: float
    p99: float
    idle: float

    @classmethod
    def of(cls, cost: Cost) -> "Figure":
        """Rounds the cost to its precision."""
        return cls(round(cost.cpu, 1), round(cost.p50), round(cost.p99), round(cost.idle, 3))


@dataclass(frozen=True, slots=True)
class Work:
    """`body` in bytes, `many` requests at once, `chunks` of the response seen by the picker.

    `alike`: all endpoints publish the same numbers, so that all of them are the best and come to hold each prompt.
    `rewritten`: another model serves, and each chunk gets the client's back. `usage`: our pickers count tokens.
    """

    body: int = KIBIBYTE
    many: int = 32
    endpoints: int = 100
    chunks: int = 0
    envoy: bool = False
    alike: bool = False
    rewritten: bool = False
    usage: bool = False

    def __str__(self) -> str:
        size = f"{self.body // KIBIBYTE} KB" if self.body < MEBIBYTE else f"{self.body // MEBIBYTE} MB"
        parts = [size, f"{self.many} in flight" if self.many > 1 else "one at a time"]
        parts += [f"{self.endpoints:,} endpoints"] if self.endpoints != 100 else []
        parts += [f"{self.chunks} chunks back"] if self.chunks else []
        parts += ["another model"] * self.rewritten
        parts += ["usage counted"] * self.usage
        return ", ".join(parts + ["all alike"] * self.alike + ["behind Envoy"] * self.envoy)


@dataclass(slots=True)
class Figures:
    """The figures of one run. `memory`: MB of the resident set by the number of picks."""

    about: dict[str, str] = field(default_factory=dict)
    rows: list[tuple[Work, Costs]] = field(default_factory=list)
    memory: list[tuple[int, float]] = field(default_factory=list)

    def of(self, work: Work) -> Costs | None:
        return next((costs for done, costs in self.rows if done == work), None)

    def write(self, path: Path) -> None:
        rows = [
            {"work": asdict(work), "costs": {k: asdict(v) for k, v in c.items()}} for work, c in self.rows
        ]
        path.write_text(
            json.dumps({"about": self.about, "rows": rows, "memory": self.memory}, indent=1) + "\n"
        )

    @classmethod
    def read(cls, path: Path) -> "Figures":
        said = json.loads(path.read_text())
        rows = [
            (Work(**row["work"]), {name: Figure(**figure) for name, figure in row["costs"].items()})
            for row in said["rows"]
        ]
        return cls(said["about"], rows, [(picks, megabytes) for picks, megabytes in said["memory"]])


def table(figures: Figures) -> list[str]:
    """Returns Markdown: processor time per request, and the client's latency for requests sent one at a time."""
    names = list(dict.fromkeys(name for _, costs in figures.rows for name in costs if name != ALONE))
    ours = _ours(figures)
    heads = [*names, *(f"{name} of the others" for name in ours)]
    lines = ["| | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for work, costs in figures.rows:
        cells = [_cell(costs[name], work) if name in costs else "" for name in names]
        others = [name for name in names if name in costs and name not in ours]
        cells += [", ".join(f"1/{costs[name].cpu / costs[one].cpu:.1f}" for name in others) for one in ours]
        alone = f" (Envoy alone {costs[ALONE].p50:.0f})" if ALONE in costs else ""
        lines.append(f"| {work}{alone} | " + " | ".join(cells) + " |")
    return lines


def _ours(figures: Figures) -> list[str]:
    """The names of our own pickers in these figures."""
    return [name for name in _OUR_NAMES if any(name in costs for _, costs in figures.rows)]


def _cell(figure: Figure, work: Work) -> str:
    return f"{figure.cpu:.0f}" + (f"; p50 {figure.p50:.0f}" if work.many == 1 else "")


def targets(figures: Figures) -> list[str]:
    """Returns each target that was measured with its figures, interpreted and compiled."""
    ours = _ours(figures)
    lines = [f"| work | target | {' | '.join(ours)} |", "|---" * (len(ours) + 2) + "|"]
    for body, part in ((KIBIBYTE, 9), (64 * KIBIBYTE, 4), (220 * KIBIBYTE, 4), (MEBIBYTE, 4)):
        if (costs := figures.of(Work(body))) is not None:
            seen = [f"1/{costs['grpc'].cpu / costs[one].cpu:.1f}" for one in ours]
            lines.append(_line(f"{Work(body)}: of grpc.aio's", f"≤ 1/{part}", seen))
    few, many = figures.of(Work()), figures.of(Work(endpoints=1000))
    if few and many:
        seen = [f"{many[one].cpu / few[one].cpu:.2f}" for one in ours]
        lines.append(_line("1,000 endpoints against 100", "≤ 1.5", seen))
        lines += _of_profiles(few, many, ours)
    if (costs := figures.of(Work(many=1, envoy=True))) is not None:
        added = {name: costs[name].p50 - costs[ALONE].p50 for name in (*ours, "grpc")}
        seen = [
            f"{added[one] / added['grpc']:.2f} (+{added[one]:.0f} against +{added['grpc']:.0f} µs)"
            for one in ours
        ]
        lines.append(_line("added latency behind Envoy, one at a time: of grpc.aio's", "≤ 1/2", seen))
    if figures.memory:
        (_, before), (picks, after) = figures.memory[0], figures.memory[-1]
        picked = picks - figures.memory[0][0]
        seen = [*[""] * (len(ours) - 1), f"{after - before:+.1f} MB"]
        lines.append(_line(f"memory that {picked:,} picks add", "< 5 MB", seen))
    return lines


def _of_profiles(few: Costs, many: Costs, ours: Sequence[str]) -> list[str]:
    """The targets of our pickers with another profile, whose names begin with theirs."""
    lines = []
    for profile in dict.fromkeys(name.partition(": ")[2] for name in few if ": " in name):
        pairs = [(one, f"{one}: {profile}") for one in ours]
        seen = [f"{few[other].cpu / few[one].cpu:.2f}" for one, other in pairs]
        lines.append(_line(f"{profile}: of the default profile's, 100 endpoints", "≤ 1.05", seen))
        seen = [f"{many[other].cpu / few[other].cpu:.2f}" for _, other in pairs]
        lines.append(_line(f"{profile}: 1,000 endpoints against 100", "≤ 1.5", seen))
    return lines


def _line(work: str, target: str, seen: Sequence[str]) -> str:
    return f"| {' | '.join((work, target, *seen))} |"


def spread(costs: Sequence[Cost]) -> str:
    """Returns each round's figure, which shows how precise the medians are."""
    return "; ".join(" ".join(f"{turn.cpu(cost.idle):.0f}" for turn in cost.turns) for cost in costs)
