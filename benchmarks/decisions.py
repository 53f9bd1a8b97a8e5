"""What a pick costs with its decision recorded, beside the same without: the Director alone, in one process, or a whole picker."""

import argparse
import asyncio
import contextlib
import gc
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.picking import pickers
from benchmarks.picking.added_cost import print_added
from benchmarks.picking.pickers import Kind
from benchmarks.picking.rounds import generator
from benchmarks.routing.arms import ARMS, COUNTED
from discovery import Instance, InstanceAddedEvent
from epp.config.picker_config import load_config
from epp.decisions.recorder import PickRecorder
from epp.decisions.ring import DecisionRing
from epp.endpoints.datastore import Datastore
from epp.endpoints.load import Load
from epp.scheduling.director import Director
from epp.scheduling.pick import Pick
from epp.scheduling.request_reader import Policy
from release import compiled_wheel

_PICKS_A_PAGE = 20
_ROUNDS = 300


class _Picking:
    """A director that picks and releases; `recorded`: its decisions are kept."""

    def __init__(self, count: int, text: str | None, *, recorded: bool) -> None:
        rng = random.Random(1)
        self._store = Datastore()
        for i in range(count):
            instance = Instance(f"w{i}", "ns", "c", f"10.0.{i // 250}.{i % 250 + 1}", 8000, "a")
            self._store.apply(InstanceAddedEvent(instance), {})
        config = load_config(text, rng=rng, staleness=2.0)
        self.director = Director(self._store, config.scheduler, config.detector, Policy(), rng)
        if recorded:
            self.director.decisions = PickRecorder(DecisionRing(1000), (), time.perf_counter)
        self._rng = random.Random(2)
        self._now = 100.0
        self._went: list[Pick] = []
        self._headers = {":method": "POST", ":path": "/v1/chat/completions", "x-request-id": "1" * 36}

    def publish(self) -> None:
        self._now += 0.05
        for endpoint in self._store.endpoints:
            load = Load(
                waiting=self._rng.randrange(4), running=self._rng.randrange(30), kv_usage=self._rng.random()
            )
            self._store.observe(endpoint, load, self._now, 0.05)

    def pick(self, body: bytes) -> None:
        self._now += 0.0005
        outcome = self.director.direct(self._headers, body, None, self._now)
        assert isinstance(outcome, Pick)
        self.director.picks.served(outcome, outcome.endpoints[0].destination)
        self.director.picks.responded(outcome, 200, self._now)
        self._went.append(outcome)
        if len(self._went) > 100:
            over = self._went.pop(0)
            self.director.picks.release(over, self._now)
            over.over("end of stream", self._now)


def _bodies(rng: random.Random) -> list[bytes]:
    prefixes = [f"{rng.random()} lorem ipsum dolor " * 20 for _ in range(20)]
    texts = [rng.choice(prefixes) + f"{rng.random()} sit amet " * 20 for _ in range(400)]
    return [
        json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode() for text in texts
    ]


def measure(count: int, text: str | None) -> tuple[float, float, float]:
    """Microseconds of processor time for a pick without and with its decision, lower quartiles, and the median of the differences."""
    pickings = [_Picking(count, text, recorded=recorded) for recorded in (False, True)]
    bodies = _bodies(random.Random(3))
    spent: list[list[float]] = [[], []]
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)
    for round_ in range(_ROUNDS):
        for picking in pickings:
            picking.publish()
        for which in (0, 1) if round_ % 2 else (1, 0):
            picking = pickings[which]
            began = time.thread_time()
            for at in range(_PICKS_A_PAGE):
                picking.pick(bodies[(round_ * _PICKS_A_PAGE + at) % len(bodies)])
            spent[which].append((time.thread_time() - began) / _PICKS_A_PAGE * 1e6)
    without, with_ = (one[_ROUNDS // 4 :] for one in spent)
    differences = [b - a for a, b in zip(without, with_, strict=True)]
    return _quartile(without), _quartile(with_), statistics.median(differences)


def _quartile(values: list[float]) -> float:
    """The lower one: what else the machine does only adds."""
    return statistics.quantiles(values, n=4)[0]


async def main(counts: Sequence[int] = (4, 100, 1000)) -> None:
    """Prints what each profile takes; about a minute."""
    for name, text in (("least cost", None), (COUNTED, ARMS[COUNTED].config)):
        for count in counts:
            without, with_, difference = measure(count, text)
            print(
                f"{name}, {count} endpoints: {without:.1f} µs without, {with_:.1f} µs with its decision, "
                f"{difference:+.1f} µs ({difference / without:+.1%})"
            )
            sys.stdout.flush()


async def compare_pickers(folder: Path | None, endpoints: int) -> None:
    """Whole pickers that are asked over gRPC; about a minute. `folder`: as in `Kind`."""
    load_core, picker_core = pickers.cores()
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        ports = await enter(pickers.workers(endpoints))
        started = [
            await enter(
                pickers.picker(
                    Kind(name, folder=folder), ports, picker_core, (*pickers.SELDOM, "--decisions", most)
                )
            )
            for name, most in (("without decisions", "0"), (f"with them, {endpoints} endpoints", "1000"))
        ]
        await print_added(started[0], started[1:], await enter(generator(load_core)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decisions", description=__doc__)
    parser.add_argument("--pickers", action="store_true", help="measure whole pickers, over gRPC")
    parser.add_argument("--compiled", action="store_true", help="those compiled by mypyc")
    parser.add_argument("--endpoints", type=int, default=100, help="of the whole pickers (default: 100)")
    given = parser.parse_args()
    if given.pickers or given.compiled:
        built = compiled_wheel.build() if given.compiled else None
        asyncio.run(compare_pickers(built, given.endpoints))
    else:
        asyncio.run(main())
