"""`python -m benchmarks.outcomes`: what it costs picker and Envoy to learn what became of requests, by each way.

Four pickers, each behind an Envoy of its own: the answer's headers pass through the picker, its end as well, Envoy's access
log tells both, or a second ext_proc filter in observability mode does, which the picker only reads. Each has its turn in each
round, so that what else the machine does meets all of them. `--before FOLDER`: the cost of a pick of the default way beside
the picker of another working copy.
"""

import argparse
import asyncio
import contextlib
import copy
import statistics
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import yaml

from benchmarks.envoy_process import envoy
from benchmarks.picking import pickers
from benchmarks.picking.added_cost import print_added
from benchmarks.picking.figures import KIBIBYTE
from benchmarks.picking.load_generator import Load
from benchmarks.picking.pickers import OURS
from benchmarks.picking.rounds import Generator, generator
from benchmarks.process_usage import processor_seconds
from epp.envoy.config import bootstrap, render
from epp.envoy.json_values import Address
from epp.envoy.settings import EnvoySettings

_LOCAL: Final = "127.0.0.1"
_ENDPOINTS: Final = 3
_BASE: Final = EnvoySettings(
    listen=Address(_LOCAL, 0), admin=Address(_LOCAL, 0), secure=False, access_log="", outcomes="ext-proc"
)
_WAYS: Final = {
    "ext-proc": _BASE,
    "ext-proc, with trailers": replace(_BASE, response_trailer="SEND"),
    "access-log": replace(_BASE, outcomes="access-log"),
    "observed": _BASE,
}
_UNTOLD: Final = 0.3
"""Seconds after a turn in which the log still tells of it."""


@dataclass(frozen=True, slots=True)
class _Way:
    name: str
    picker: int
    envoy: int
    port: int

    def used(self) -> tuple[float, float]:
        return processor_seconds(self.picker), processor_seconds(self.envoy)


async def main(rounds: int, seconds: float, before: Path | None) -> None:
    load_core, core = pickers.cores()
    async with contextlib.AsyncExitStack() as stack:
        ports = await stack.enter_async_context(pickers.workers(_ENDPOINTS))
        made = await stack.enter_async_context(generator(load_core))
        if before is not None:
            named = replace(OURS, name="before", folder=before)
            arms = [
                await stack.enter_async_context(pickers.picker(kind, ports, core)) for kind in (named, OURS)
            ]
            await print_added(arms[0], arms[1:], made)
            return
        ways = [await stack.enter_async_context(_started(name, ports, core)) for name in _WAYS]
        for size in (KIBIBYTE, 64 * KIBIBYTE):
            await _measure(ways, made, Load(0, "posts", size, connections=32, seconds=seconds), rounds)


@contextlib.asynccontextmanager
async def _started(name: str, ports: Sequence[int], core: int) -> AsyncIterator[_Way]:
    async with pickers.picker(replace(OURS, name=name), ports, core) as picker:
        settings = replace(
            _WAYS[name],
            mode="override-host",
            pickers=(Address(_LOCAL, picker.port),),
            endpoints=[Address(_LOCAL, port) for port in ports],
        )
        config = _observed(settings) if name == "observed" else render(settings)
        async with envoy(config, core=core) as (pid, port):
            yield _Way(name, picker.pid, pid, port)


def _observed(settings: EnvoySettings) -> str:
    """The deciding stream ends with the request; a second filter, whose stream can hold up and fail nothing, sends the answers'
    headers and ends."""
    config = bootstrap(settings)
    [chain] = config["static_resources"]["listeners"][0]["filter_chains"]
    filters = chain["filters"][0]["typed_config"]["http_filters"]
    [deciding] = [one["typed_config"] for one in filters if one["name"] == "envoy.filters.http.ext_proc"]
    observing = copy.deepcopy(deciding)
    del observing["message_timeout"]
    observing |= {"observability_mode": True, "failure_mode_allow": True, "deferred_close_timeout": "1s"}
    observing["processing_mode"] = {
        "request_header_mode": "SKIP",
        "request_body_mode": "NONE",
        "request_trailer_mode": "SKIP",
        "response_header_mode": "SEND",
        "response_body_mode": "NONE",
        "response_trailer_mode": "SEND",
    }
    deciding["processing_mode"]["response_header_mode"] = "SKIP"
    filters.insert(0, {"name": "observing", "typed_config": observing})
    return yaml.safe_dump(config)


async def _measure(ways: Sequence[_Way], made: Generator, load: Load, rounds: int) -> None:
    costs: dict[str, list[tuple[float, float]]] = {way.name: [] for way in ways}
    for way in ways:
        await made.make(replace(load, port=way.port, seconds=0.2))
    for number in range(rounds):
        for way in ways if number % 2 else reversed(ways):
            before = way.used()
            summary = await made.make(replace(load, port=way.port))
            await asyncio.sleep(_UNTOLD)
            assert not summary["bad"], summary["said"]
            spent = [
                (after - first) / summary["done"] * 1e6
                for first, after in zip(before, way.used(), strict=True)
            ]
            costs[way.name].append((spent[0], spent[1]))
    print(f"bodies of {load.body // KIBIBYTE} KiB, {rounds} rounds; µs of processor time a request")
    first = costs[ways[0].name]
    for way in ways:
        own = costs[way.name]
        for part, at in (("picker", 0), ("Envoy", 1)):
            ratios = [mine[at] / theirs[at] for mine, theirs in zip(own, first, strict=True)]
            print(f"  {way.name}: {part} {_spread([one[at] for one in own])}; ratio {_spread(ratios, 3)}")
        both = [sum(mine) / sum(theirs) for mine, theirs in zip(own, first, strict=True)]
        print(
            f"  {way.name}: both {_spread([sum(one) for one in own])}; ratio {_spread(both, 3)}", flush=True
        )


def _spread(values: Sequence[float], digits: int = 0) -> str:
    """The median, and the quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.outcomes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--before", type=Path, metavar="FOLDER")
    given = parser.parse_args()
    asyncio.run(main(given.rounds, given.seconds, given.before))
