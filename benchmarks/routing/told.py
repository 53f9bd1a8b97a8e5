"""`python -m benchmarks.routing.told`: pickers that tell each other what they pick, in virtual time, beside one picker and blind ones.

The real messages (`epp.peers`), read after a delay: what happens within 10 ms is one message. With `--fault` the first picker is
killed, stopped for 2 s or cut off from the others for 2 s, in the middle of the run; a killed or stopped one gets no requests.
"""

import argparse
import dataclasses
import heapq
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Final

from benchmarks.routing.arms import ARMS, Arm, PickerChooser
from benchmarks.routing.chooser import Chooser
from benchmarks.routing.figures import Answer, Figures
from benchmarks.routing.machines import MACHINES, OURS, Machine, WorkerModel
from benchmarks.routing.run import QUICK_SECONDS
from benchmarks.routing.virtual import Request, Run
from benchmarks.routing.workloads import WORKLOADS, Workload
from epp.endpoints.load import Load
from epp.peers.messages.peers_pb2 import News
from epp.peers.publisher import PickPublisher
from epp.peers.subscriber import PickSubscriber
from epp.scheduling.plugin import ChainProducer, CostLearner
from examples.simulator.scheduler_model import Limits

NAMES: Final = ("shared, streamed", "shared, Zipf", "growing sessions", "long tail")
TICK: Final = 0.01
"""As `epp.peers.peering.TELL_INTERVAL`."""
TEACH: Final = 1.0
"""As `epp.peers.peering` looks whether something was learnt that is to be told."""
FAULTS: Final = ("killed", "stopped", "cut off")
FAULT_AT: Final = 20.0
FAULT_LASTS: Final = 2.0
"""Seconds. Requests come for 40."""
NOTICED: Final = {"killed": 0.03, "stopped": 0.85, "cut off": 0.85}
"""Seconds until what a lost picker told counts no longer, as measured with processes."""


class TellingChooser(PickerChooser):
    """`is_awake`: it has something to tell."""

    def __init__(self, arm: Arm, workers: Sequence[WorkerModel], limits: Limits, seed: int) -> None:
        super().__init__(arm, workers, limits, seed)
        self.is_awake = False
        self.stands_still = False
        self.publisher = PickPublisher(self._wake)
        for one in self._director.producers:
            if isinstance(one, ChainProducer):
                one.use_seed(1)
        self.publisher.use(self._director.producers)
        self._director.picks.peers = self.publisher

    def _wake(self) -> None:
        self.is_awake = True

    def read(self, worker: int, page: Load, now: float, period: float) -> None:
        if not self.stands_still:
            super().read(worker, page, now, period)

    def subscriber(self) -> PickSubscriber:
        return PickSubscriber(self._director.picks, self._store)

    def heed(self, heard: Sequence[PickSubscriber]) -> None:
        """What the others learnt, as far as it was told."""
        fits = [one.learnt for one in heard if one.learnt is not None]
        for producer in self._director.producers:
            if isinstance(producer, CostLearner):
                producer.use_peer_fits(fits)


@dataclasses.dataclass(slots=True)
class Way:
    """From one picker to another."""

    teller: TellingChooser
    hearer: TellingChooser
    subscriber: PickSubscriber
    position: int = -1
    bytes: int = 0
    is_cut: bool = False


class ToldRun(Run):
    """Each picker is told after `delay` seconds; None: never. `fault`: of `FAULTS`, what happens to the first one in the middle."""

    def __init__(
        self,
        workload: Workload,
        seed: int,
        delay: float | None,
        fault: str | None = None,
        machine: Machine = MACHINES[OURS],
    ) -> None:
        self._delay = delay
        self._publisher: list[TellingChooser] = []
        self._ways: dict[TellingChooser, list[Way]] = {}
        self._is_away = False
        self._back_at = 0.0
        super().__init__(self._make, workload, seed, machine)
        for one in self._publisher:
            self._ways[one] = [
                Way(one, other, other.subscriber()) for other in self._publisher if other is not one
            ]
        if delay is not None:
            self._at(TEACH, self._teach)
        if fault is not None and delay is not None and workload.pickers > 1:
            self._at(FAULT_AT, self._lose, fault)

    def _make(self, workers: Sequence[WorkerModel], limits: Limits, seed: int) -> Chooser:
        made = TellingChooser(ARMS["least cost"], workers, limits, seed)
        self._publisher.append(made)
        return made

    @property
    def bytes(self) -> float:
        """Told to one other picker, for each request."""
        pickers = len(self._publisher)
        told = sum(way.bytes for ways in self._ways.values() for way in ways)
        return told / max(1, pickers - 1) / len(self.answers)

    def run(self) -> list[Answer]:
        while self._left:
            now, _, what, given = heapq.heappop(self._events)
            what(now, *given)
            if self._delay is not None:
                self._wake(now)
        return self.answers

    # What becomes of the first picker

    def _lose(self, now: float, fault: str) -> None:
        self._back_at = math.inf if fault == "killed" else now + FAULT_LASTS
        self._is_away = fault != "cut off"
        first = self._publisher[0]
        first.stands_still = self._is_away
        for way in self._ways_of(first):
            way.is_cut = True
            if way.teller is first or fault == "cut off":
                self._at(now + NOTICED[fault], self._forget, way)
        if fault != "killed":
            self._at(self._back_at, self._return)

    def _forget(self, _: float, way: Way) -> None:
        way.subscriber.forget()
        way.position = -1

    def _return(self, now: float) -> None:
        """All streams begin anew."""
        self._is_away = self._publisher[0].stands_still = False
        for way in self._ways_of(self._publisher[0]):
            way.is_cut = False
            self._forget(now, way)
            way.teller.is_awake = True

    def _ways_of(self, one: TellingChooser) -> list[Way]:
        return [way for ways in self._ways.values() for way in ways if one in (way.teller, way.hearer)]

    def _chooser_of(self, key: int, now: float) -> Chooser:
        others = self._publisher[1:]
        return others[key % len(others)] if self._is_away else super()._chooser_of(key, now)

    def _acts(self, request: Request, what: Callable[[float, Request], None]) -> bool:
        """Whether its picker learns of it now; otherwise it does when it runs again, or never."""
        if not self._is_away or request.chooser is not self._publisher[0]:
            return True
        if self._back_at < math.inf:
            self._at(self._back_at, what, request)
        return False

    def _responded(self, now: float, request: Request) -> None:
        if self._acts(request, self._responded):
            super()._responded(now, request)

    def _ended(self, now: float, request: Request) -> None:
        if self._acts(request, self._ended):
            super()._ended(now, request)

    # What pickers tell each other

    def _wake(self, now: float) -> None:
        for one in self._publisher:
            if one.is_awake and not one.stands_still:
                one.is_awake = False
                self._at(now + TICK, self._flush, one)

    def _teach(self, now: float) -> None:
        for one in self._publisher:
            if not one.stands_still:
                one.heed([way.subscriber for way in self._ways_of(one) if way.hearer is one])
                one.publisher.teach()
        self._at(now + TEACH, self._teach)

    def _flush(self, now: float, one: TellingChooser) -> None:
        assert self._delay is not None
        if one.stands_still:
            one.is_awake = True
            return
        one.publisher.flush(now)
        for way in self._ways[one]:
            self._at(now + max(0.0, self._delay - TICK), self._carry, way, now)

    def _carry(self, now: float, way: Way, flushed_at: float) -> None:
        """What was flushed until then has arrived."""
        if way.is_cut:
            return
        publisher = way.teller.publisher
        if publisher.is_lost(way.position):
            parts, way.position = publisher.anew()
            for part in parts:
                self._hear(News.FromString(part), way, now)
        while (kept := publisher.since(way.position)) is not None and kept.at <= flushed_at:
            news = News.FromString(kept.data)
            news.age_ms = round(1000 * (now - kept.at))
            self._hear(news, way, now)
            way.position += 1

    def _hear(self, news: News, way: Way, now: float) -> None:
        way.bytes += news.ByteSize()
        way.subscriber.hear(news, now)


def run(
    name: str, pickers: int, delay: float | None, fault: str | None, machine: str, seed: int
) -> tuple[Figures, float]:
    workload = dataclasses.replace(WORKLOADS[name], pickers=pickers).times(MACHINES[machine].rate)
    if machine != OURS:
        workload = workload.lasting(QUICK_SECONDS)
    made = ToldRun(workload, seed, delay, fault, MACHINES[machine])
    return made.figures(), made.bytes


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.routing.told", description=__doc__)
    parser.add_argument(
        "--workload", action="append", choices=sorted(WORKLOADS), help="default: four of them"
    )
    parser.add_argument("--pickers", type=int, action="append", help="default: 2, 4, 8")
    parser.add_argument("--delay", type=int, action="append", help="milliseconds; default: 10, 50, 200")
    parser.add_argument("--seed", type=int, default=100, help="the first one (default: 100)")
    parser.add_argument("--seeds", type=int, default=5, help="default: 5")
    parser.add_argument("--fault", choices=FAULTS, help="what happens to one picker; default: nothing")
    parser.add_argument(
        "--machine",
        choices=MACHINES,
        default=OURS,
        help="kind of workers (%(default)s); of others 20 s of arrivals",
    )
    given = parser.parse_args(arguments)
    told = [one / 1000.0 for one in given.delay or (10, 50, 200)]
    delays = [None, *told] if given.fault is None else told
    rows = [(1, None), *[(pickers, delay) for pickers in given.pickers or (2, 4, 8) for delay in delays]]
    seeds = range(given.seed, given.seed + given.seeds)
    print(
        "| workload | pickers | told after | TTFT mean, s | to one picker (range) | p90, s | hits | bytes a request and peer |"
    )
    print("|---|---|---|---|---|---|---|---|")
    with ProcessPoolExecutor() as pool:
        for name in given.workload or NAMES:
            alone: list[Figures] = []
            for pickers, delay in rows:
                found = list(pool.map(partial(run, name, pickers, delay, given.fault, given.machine), seeds))
                figures = [one for one, _ in found]
                alone = alone or figures
                print(_row(name, pickers, delay, figures, alone, [told for _, told in found]), flush=True)
    return 0


def _row(
    name: str,
    pickers: int,
    delay: float | None,
    figures: Sequence[Figures],
    alone: Sequence[Figures],
    told: Sequence[float],
) -> str:
    ratios = [one.ttft / other.ttft for one, other in zip(figures, alone, strict=True)]
    when = "never" if delay is None else f"{1000 * delay:.0f} ms"
    median = statistics.median
    ratio = f"**{median(ratios):.2f}** ({min(ratios):.2f} to {max(ratios):.2f})" if pickers > 1 else ""
    return (
        f"| {name} | {pickers} | {when if pickers > 1 else ''} | {median(one.ttft for one in figures):.2f} | {ratio} "
        f"| {median(one.ttft_p90 for one in figures):.2f} | {median(one.hits for one in figures):.3f} "
        f"| {median(told):.0f} |"
    )


if __name__ == "__main__":
    sys.exit(main())
