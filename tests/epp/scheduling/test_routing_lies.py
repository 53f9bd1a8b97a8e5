"""Workers that lie about their work: in virtual time, what the picker learns and where it sends requests."""

import dataclasses
import functools
from collections.abc import Sequence

import pytest

from benchmarks.routing.arms import ARMS, PickerChooser
from benchmarks.routing.chooser import Wanted
from benchmarks.routing.machines import WorkerModel
from benchmarks.routing.virtual import Run
from benchmarks.routing.workloads import Workload, shared
from epp.endpoints.load import Load
from epp.endpoints.worker_metrics import PROMPT_TOKENS
from epp.scheduling.work_ahead.cost_model import CostModel
from epp.scheduling.work_ahead.producer import WorkAheadProducer
from examples.simulator.scheduler_model import Limits


class Told(PickerChooser):
    """What the picker hears of worker 0 is not what happens. Answers are followed to their ends."""

    def __init__(self, lie: str, workers: Sequence[WorkerModel], limits: Limits, seed: int) -> None:
        super().__init__(dataclasses.replace(ARMS["least cost"], sees_answers=True), workers, limits, seed)
        self.lie = lie
        self.counts: dict[int, int] = {}
        self._first: Load | None = None
        self._reads = 0

    @property
    def model(self) -> CostModel:
        (producer,) = [one for one in self._director.producers if isinstance(one, WorkAheadProducer)]
        return producer.model

    def choose(self, wanted: Wanted, now: float) -> int:
        worker = super().choose(wanted, now)
        self.counts[worker] = self.counts.get(worker, 0) + 1
        if self.lie == "begins at once" and worker == 0:
            pick = self._picks[wanted.key]
            self._director.picks.responded(pick, 200, now + 0.001)
            super().first_token(wanted, worker, now + 0.001)
        return worker

    def read(self, worker: int, page: Load, now: float, period: float) -> None:
        self._reads += 1
        if worker == 0 and self.lie == "pages of the past":
            self._first = self._first or page
            page = self._first
        if worker == 0 and self.lie == "counter that jumps":
            jumped = page.others[PROMPT_TOKENS] + 1e6 * (self._reads // 100)
            page = dataclasses.replace(page, others={PROMPT_TOKENS: jumped})
        super().read(worker, page, now, period)

    def first_token(self, wanted: Wanted, worker: int, now: float) -> None:
        if self.lie == "one in a hundred takes long" and wanted.key % 100 == 50:
            prompt = self._first_bytes[wanted.key].request.awaited.prompt  # type: ignore[union-attr, attr-defined]
            prompt.sent_at -= 99 * (now - prompt.sent_at)
        super().first_token(wanted, worker, now)

    def responded(self, wanted: Wanted, worker: int, now: float) -> None:
        if self.lie != "begins at once" or worker:
            super().responded(wanted, worker, now)

    def ended(self, wanted: Wanted, worker: int, now: float) -> None:
        if self.lie != "begins at once" or worker:  # it says nothing more
            super().ended(wanted, worker, now)

    @property
    def share(self) -> float:
        """Of the requests, of worker 0."""
        return self.counts[0] / sum(self.counts.values())


@functools.cache
def ran(lie: str, seed: int) -> Told:
    made: list[Told] = []

    def make(workers: Sequence[WorkerModel], limits: Limits, seed: int) -> Told:
        made.append(Told(lie, workers, limits, seed))
        return made[-1]

    Run(make, Workload(functools.partial(shared, rate=15.0, seconds=40.0)), seed).run()
    return made[0]


def seconds(told: Told) -> tuple[float, float]:
    """That a thousand missing tokens take, and a thousand ahead."""
    assert told.model.learnt
    return told.model.numbers[1], told.model.numbers[2]


def test_a_thousand_missing_tokens_take_what_the_worker_takes() -> None:
    assert seconds(ran("nothing", 50))[0] == pytest.approx(0.21, rel=0.1)  # 0.2 ms for each, 20 for a step


@pytest.mark.parametrize(
    ("lie", "seed"),
    [
        ("begins at once", 50),
        ("one in a hundred takes long", 50),
        ("pages of the past", 50),
        ("counter that jumps", 50),
        ("pages of the past", 51),
        ("counter that jumps", 51),
    ],
)
def test_a_worker_that_lies_and_rare_long_waits_teach_little_and_draw_no_herd(lie: str, seed: int) -> None:
    told = ran(lie, seed)
    assert told.share < 0.3  # of five workers
    assert seconds(told) == pytest.approx(seconds(ran("nothing", seed)), rel=0.2)
