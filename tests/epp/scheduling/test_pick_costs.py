"""What a pick costs: at most ten times the figures in benchmarks/picking/README.md."""

import sys

import pytest

from benchmarks.picking import pickers
from benchmarks.picking.load_generator import Load
from benchmarks.picking.rounds import compare, generator

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processor time is read from /proc")

_MOST_OF_GRPC = {1024: 10 / 9, 64 * 1024: 10 / 4}
_MOST_MEMORY = 10 * 5.0


async def test_a_pick_costs_little_and_leaves_little_behind() -> None:
    load_core, picker_core = pickers.cores()
    async with (
        pickers.workers(10) as ports,
        pickers.picker(pickers.OURS, ports, picker_core, options=()) as ours,
        pickers.picker(pickers.GRPC, ports, picker_core, options=()) as grpc,
        generator(load_core) as load,
    ):
        for body, most in _MOST_OF_GRPC.items():
            work = Load(port=0, kind="streams", body=body, connections=2, many=16, seconds=0.3)
            costs = await compare((ours, grpc), work, load, rounds=2)
            assert costs[ours.name].cpu <= most * costs[grpc.name].cpu, body
        before = ours.megabytes
        summary = await load.make(Load(ours.port, "streams", 1024, 2, 16, count=5_000))
        assert not summary["bad"], summary["said"]
        assert ours.megabytes - before <= _MOST_MEMORY
