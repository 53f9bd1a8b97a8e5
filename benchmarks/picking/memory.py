"""Measures the growth of a picker's resident set over a million distinct requests."""

from collections.abc import Callable

from benchmarks.picking import pickers
from benchmarks.picking.load_generator import Load
from benchmarks.picking.pickers import Kind
from benchmarks.picking.rounds import generator

WARM_UP = 150_000
"""After as many prompts the prefix index of 100 endpoints that all serve some is as full as it may be."""
_BODY = 4096
_STEPS = 10


async def measure_growth(kind: Kind, picks: int, say: Callable[[str], None]) -> list[tuple[int, float]]:
    """Returns (picks so far, MB) after the warm-up and at ten steps from there."""
    load_core, picker_core = pickers.cores()
    seen: list[tuple[int, float]] = []
    async with (
        pickers.workers(100, alike=True) as ports,
        pickers.picker(kind, ports, picker_core) as picker,
        generator(load_core) as load,
    ):
        done = 0
        for count in (WARM_UP, *([picks // _STEPS] * _STEPS)):
            summary = await load.make(Load(picker.port, "streams", _BODY, 2, 16, count=count))
            done += int(summary["done"])
            seen.append((done, round(picker.megabytes, 2)))
            say(f"memory: {seen[-1][1]:.1f} MB after {done:,} picks")
            assert not summary["bad"], summary["said"]
    return seen
