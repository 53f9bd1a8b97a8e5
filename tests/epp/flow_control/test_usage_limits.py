"""Usage limits over a pool whose saturation stays as it is: who goes, and how many."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import EndpointPool
from epp.flow_control.controller import FlowController
from epp.flow_control.settings import FlowControlSettings, PriorityBand
from epp.flow_control.usage_limits import PriorityHoldback, SoftReflectiveCeiling, UsageLimitPolicy
from epp.request.inference_request import InferenceRequest
from epp.scheduling.pick import Pick, SchedulingContext
from epp.scheduling.waiting import WaitingRequests
from tests.epp.scheduling.test_director import NOW, store_of


@dataclass
class Fixed:
    """A detector that says what it is told."""

    value: float

    counts_in_flight = False

    def saturation(self, pool: EndpointPool) -> float:
        return self.value


@dataclass
class Stage:
    """A controller over one worker, and the requests that went."""

    policy: UsageLimitPolicy
    store: Datastore
    picking: Any
    detector: Fixed = field(default_factory=lambda: Fixed(0.0))
    went: list[InferenceRequest] = field(default_factory=list)

    def __post_init__(self) -> None:
        bands = {priority: PriorityBand() for priority in (100, -50)}
        settings = FlowControlSettings(bands=bands, usage_limit=self.policy, default_band=PriorityBand())
        self.controller = FlowController(settings, self.detector, self.store.pool)
        self.waiting = WaitingRequests(self, self.store, self.controller.withdraw)

    def candidates(self, context: SchedulingContext, now: float) -> EndpointPool:
        return self.store.pool(now)

    def schedule(self, context: SchedulingContext, now: float) -> Pick:
        self.went.append(context.request)
        pick: Pick = self.picking("10.0.0.1:8000")
        return pick

    def ask(self, priority: int) -> bool:
        """Whether it goes at once; otherwise it waits."""
        request = InferenceRequest("id", "/", {})
        request.priority = priority
        if self.controller.admit(request, self.store.pool(NOW), NOW):
            return True
        waiting = self.waiting.begin(SchedulingContext(request), NOW)
        self.controller.enqueue(waiting, NOW)
        self.waiting.add(waiting, NOW)
        return False

    def turn(self, now: float = NOW) -> tuple[int, float | None]:
        """How many go in one turn, and when the next one is due."""
        before = len(self.went)
        due = self.controller.dispatch(now)
        return len(self.went) - before, due


@pytest.fixture
def stage(picking: Any) -> Any:
    return lambda policy: Stage(policy, store_of(""), picking)


def test_a_reflective_ceiling_lets_one_of_every_few_go(stage: Any) -> None:
    it = stage(SoftReflectiveCeiling())
    it.detector.value = 0.75  # of 3 priorities the lowest ceiling is 0.25: open in one of 3 calls
    assert [it.ask(-50) for _ in range(4)] == [False] * 4, "who comes when somebody waits, waits too"
    turns = [it.turn() for _ in range(6)]
    assert [count for count, _ in turns] == [0, 1, 0, 1, 0, 1], (
        "one call in each turn, and one behind each that goes"
    )
    assert all(due is not None and due <= NOW + 0.01 for _, due in turns), (
        "nothing happens, so the clock asks"
    )
    assert it.ask(100), "the highest priority goes until the pool is full"
    it.detector.value = 1.0
    assert not it.ask(100)
    count, due = it.turn()
    assert (count, due is not None and due > NOW + 1) == (0, True), "a full pool is not asked again and again"


def test_below_the_ceilings_all_go_at_once(stage: Any) -> None:
    it = stage(SoftReflectiveCeiling())
    it.detector.value = 0.3
    assert [it.ask(priority) for priority in (-50, 0, 100) * 3] == [True] * 9


def test_lower_priorities_are_held_back_first(stage: Any) -> None:
    it = stage(PriorityHoldback(lowest=0.4, highest=0.9))  # the middle one: 0.65
    for saturation, expected in (
        (0.39, [True, True, True]),
        (0.5, [True, True, False]),
        (0.7, [True, False, False]),
        (0.9, [False, False, False]),
    ):
        it = stage(PriorityHoldback(lowest=0.4, highest=0.9))
        it.detector.value = saturation
        assert [it.ask(priority) for priority in (100, 0, -50)] == expected, saturation
    it.detector.value = 0.6
    assert it.turn()[0] == 2
    assert [request.priority for request in it.went] == [100, 0]


def test_a_lower_priority_never_has_a_higher_ceiling(stage: Any) -> None:
    class Rising:
        per_request = False

        def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
            return [0.4, 0.9, 0.6][: len(priorities)]

    it = stage(Rising())
    it.controller.dispatch(NOW)
    assert [band.ceiling for band in it.controller.bands] == [0.4, 0.4, 0.4]
    it.detector.value = 0.5
    assert [it.ask(priority) for priority in (-50, 0, 100)] == [False] * 3
