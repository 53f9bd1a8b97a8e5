"""The saturation that decides about dispatch: of pages and of what was sent since, under usage limits, and shared by pickers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from discovery import Instance, InstanceAddedEvent
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import EndpointPool
from epp.endpoints.load import Load
from epp.flow_control.controller import FlowController
from epp.flow_control.pool_load import PoolLoad
from epp.flow_control.usage_limits import PriorityHoldback, SoftReflectiveCeiling, UsageLimitPolicy
from epp.request.inference_request import InferenceRequest
from epp.scheduling.in_flight_load.plugins import ConcurrencyDetector, ConcurrencyParameters
from epp.scheduling.in_flight_load.producer import InFlightLoadProducer
from epp.scheduling.pick import Pick, SchedulingContext
from epp.scheduling.saturation import SaturationDetector, UtilizationDetector
from epp.scheduling.waiting import WaitingRequests
from tests.epp.flow_control.flow_settings import band_settings, flow_settings
from tests.epp.flow_control.test_flow_control import Held
from tests.epp.scheduling.test_admission import Client, client_of
from tests.epp.scheduling.test_director import NOW, store_of

UTILIZATION = UtilizationDetector()
CONCURRENCY = ConcurrencyDetector(
    InFlightLoadProducer(), ConcurrencyParameters.model_construct(max_concurrency=10)
)


def page(store: Datastore, number: int, now: float = NOW, **load: float) -> None:
    published = {"waiting": 0.0, "running": 0.0, "kv_usage": 0.0} | load
    store.observe(store.endpoints[number], Load(**published), now)


def send(store: Datastore, number: int, count: int = 1) -> None:
    for _ in range(count):
        store.reserve(store.endpoints[number])


def end(store: Datastore, number: int, count: int = 1) -> None:
    for _ in range(count):
        store.release(store.endpoints[number])


def measured(store: Datastore, now: float = NOW, detector: SaturationDetector = UTILIZATION) -> float:
    load = PoolLoad(detector, store.pool)
    load.measure(now)
    return load.saturation


def test_what_the_pages_say_is_what_the_detector_says() -> None:
    store = store_of("", "", "")
    page(store, 0, waiting=2)
    page(store, 1, kv_usage=0.6)
    page(store, 2, waiting=9)
    expected = UTILIZATION.saturation(store.pool(NOW))
    assert expected == pytest.approx((0.4 + 0.75 + 1.8) / 3)
    assert measured(store) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("endpoints", "expected"), [(1, 3.0), (2, 0.75), (3, 2 / 3), (4, 2.5 / 4), (5, 0.6), (10, 0.3)]
)
def test_one_wrong_page_does_not_fill_a_pool_that_is_idle(endpoints: int, expected: float) -> None:
    store = store_of(*[""] * endpoints)
    for number in range(endpoints):
        page(store, number, waiting=100_000.0 if number == 0 else 0.0)
    assert measured(store) == pytest.approx(expected)


def test_what_was_sent_since_the_page_counts_as_waiting() -> None:
    store = store_of("", "")
    send(store, 0, 3)
    assert UTILIZATION.saturation(store.pool(NOW)) == 0
    assert measured(store) == pytest.approx(0.6 / 2)
    page(store, 0, running=3)
    assert measured(store) == 0, "the page shows them, and nothing waits"
    end(store, 0, 3)
    send(store, 0, 2)
    assert measured(store) == pytest.approx(0.4 / 2), (
        "those that ended do not hide those that were sent since"
    )
    end(store, 0, 2)
    assert measured(store) == 0, "what was sent since the page and has ended does not wait"


@pytest.mark.parametrize("full", [{"waiting": 5.0}, {"kv_usage": 0.99}])
def test_a_stale_page_counts_for_nothing_but_what_was_running(full: dict[str, float]) -> None:
    store = store_of("")
    send(store, 0, 8)
    page(store, 0, running=6, **full)
    assert measured(store) >= 1
    late = NOW + 1
    assert measured(store, late) == pytest.approx(2 / 5), "two more are in flight than it could run"
    end(store, 0, 8)
    assert measured(store, late) == 0


def test_a_worker_without_a_page_counts_by_what_is_in_flight() -> None:
    store = store_of("")
    store.record_failed_scrape(store.endpoints[0], has_page=False)
    send(store, 0, 4)
    assert measured(store) == pytest.approx(4 / 5)


def test_workers_that_get_no_requests_do_not_count() -> None:
    store = store_of("", "")
    page(store, 0, waiting=5)
    assert measured(store) == 0.5
    store.set_lost(store.endpoints[1], lost=True)
    assert measured(store) == 1
    store.set_lost(store.endpoints[0], lost=True)
    assert measured(store) == 0.5, "if nobody is reachable, requests go to all"


@pytest.mark.parametrize("detector", [UTILIZATION, CONCURRENCY])
def test_requests_are_counted_until_the_pool_is_full(detector: SaturationDetector) -> None:
    """From whatever it was when it was measured: sums of shares are not exact."""
    store = store_of("", "", "", "", "", "", "")
    room = 7 * (5 if detector is UTILIZATION else 10)
    for before in range(room):
        load = PoolLoad(detector, store.pool)
        load.measure(NOW)
        for sent in range(room - before):
            assert load.saturation < 1, (before, sent)
            load.sent()
        assert load.saturation >= 1, before
        send(store, before % 7)


def test_where_prefill_and_decode_are_apart_the_fuller_decides() -> None:
    store = Datastore()
    for number, role in enumerate(("prefill", "decode", "decode", "decode", "encode", "prefill-decode", "?")):
        labels = {"llm-d.ai/role": role}
        instance = Instance(f"w{number}", "ns", "c", f"10.0.0.{number + 1}", 8000, "a", labels=labels)
        store.apply(InstanceAddedEvent(instance), {})
        page(store, number)
    assert measured(store) == 0
    page(store, 0, waiting=5)
    assert measured(store) == pytest.approx(0.5), "prefill: one of two is full"
    page(store, 4, waiting=5)
    page(store, 6, waiting=5)
    assert measured(store) == pytest.approx(0.5), "no request goes there"
    for number in (1, 2, 3):
        page(store, number, waiting=5)
    assert measured(store) == pytest.approx(0.75), "decode: three of four"
    load = PoolLoad(UTILIZATION, store.pool)
    assert load.by_stage(NOW) == pytest.approx({"prefill": 0.5, "decode": 0.75, "effective": 0.75})
    load.measure(NOW)
    for _ in range(3):
        load.sent()
    assert load.saturation >= 1, "they may need the smaller stage"


def test_a_pool_that_is_not_apart_decodes() -> None:
    store = store_of("")
    page(store, 0, waiting=1)
    load = PoolLoad(UTILIZATION, store.pool)
    assert load.by_stage(NOW) == pytest.approx({"decode": 0.2, "effective": 0.2})
    assert PoolLoad(UTILIZATION, Datastore().pool).by_stage(NOW) == {"effective": 1.0}


class Strange:
    """A detector of somebody else's."""

    def __init__(self, saturation: float) -> None:
        self.says = saturation

    counts_in_flight = False

    def saturation(self, pool: EndpointPool) -> float:
        return self.says


def test_another_detector_is_asked_after_each_request() -> None:
    load = PoolLoad(Strange(0.25), store_of("").pool)
    load.measure(NOW)
    assert (load.saturation, load.counts) == (0.25, False)
    load.sent()
    assert load.saturation >= 1


def test_a_saturation_that_makes_no_sense_is_full() -> None:
    assert measured(store_of(""), detector=Strange(math.nan)) == 1


def test_a_measurement_serves_as_long_as_nothing_was_published_or_shortly() -> None:
    store = store_of("")
    load = PoolLoad(UTILIZATION, store.pool)
    assert not load.serves(store.pool(NOW).state, NOW)
    load.measure(NOW)
    assert load.serves(store.pool(NOW).state, NOW + 60)
    page(store, 0, waiting=1)
    assert load.serves(store.pool(NOW).state, NOW + 0.01)
    assert not load.serves(store.pool(NOW).state, NOW + 0.03)
    load.measure(NOW)
    load.forget()
    assert not load.serves(store.pool(NOW).state, NOW)


def test_it_is_known_when_a_page_becomes_stale() -> None:
    store = store_of("", "")
    page(store, 1, now=NOW + 0.1)
    load = PoolLoad(UTILIZATION, store.pool)
    assert load.changes_at(NOW + 0.1) == pytest.approx(NOW + UTILIZATION.staleness)
    assert load.changes_at(NOW + 0.25) == pytest.approx(NOW + 0.1 + UTILIZATION.staleness)
    assert PoolLoad(CONCURRENCY, store.pool).changes_at(NOW + 60) == math.inf


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
        bands = {priority: band_settings() for priority in (100, -50)}
        settings = flow_settings(bands=bands, usage_limit=self.policy, default_band=band_settings())
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
    it = stage(PriorityHoldback.model_construct(min_ceiling=0.4, max_ceiling=0.9))  # the middle one: 0.65
    for saturation, expected in (
        (0.39, [True, True, True]),
        (0.5, [True, True, False]),
        (0.7, [True, False, False]),
        (0.9, [False, False, False]),
    ):
        it = stage(PriorityHoldback.model_construct(min_ceiling=0.4, max_ceiling=0.9))
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


ROOM = 10
TOLD = 0.012
"""Seconds until the other picker knows."""


class Two:
    """Two pickers of one worker; what happens at one is known at the other after TOLD."""

    def __init__(self, messages: Any) -> None:
        self.pickers = []
        for _ in range(2):
            store = store_of("")
            detector = ConcurrencyDetector(
                InFlightLoadProducer(), ConcurrencyParameters.model_construct(max_concurrency=ROOM)
            )
            admission = FlowController(flow_settings(), detector, store.pool)
            it = Held(store, admission, client_of(messages))
            it.admission = admission
            self.pickers.append(it)
        self.told = [0, 0]
        self.clients: list[list[Client]] = [[], []]

    def ask(self, at: int, count: int) -> None:
        self.clients[at] += [self.pickers[at].ask(f"{at} {n}") for n in range(count)]

    def own(self, at: int) -> int:
        store = self.pickers[at].store
        return store.inflight(store.endpoints[0])

    def tell(self, seconds: float = TOLD) -> None:
        """Time passes, and both know what the other one has."""
        for at, other in ((0, 1), (1, 0)):
            self.pickers[at].now += seconds
            picker, there = self.pickers[at], self.own(other)
            picker.store.count_for_peers(picker.store.endpoints[0], there, self.told[at], picker.now)
            self.told[at] = there
            picker.admission.set_waiting_at_peers(
                [waiting] if (waiting := self.pickers[other].admission.waiting) else []
            )
        for one in self.pickers:
            one.turns()

    def end(self, at: int) -> None:
        picker = self.pickers[at]
        client = next(one for one in self.clients[at] if one.destination)
        self.clients[at].remove(client)
        picker.end(client)


@pytest.fixture
def two(messages: Any) -> Two:
    return Two(messages)


def test_who_has_all_places_gives_up_those_beyond_its_share(two: Two) -> None:
    two.ask(0, 30)
    assert two.own(0) == ROOM
    two.tell()
    two.ask(1, 20)
    two.tell()
    assert (two.own(0), two.own(1)) == (ROOM, 0)
    for _ in range(20):
        busier = max((0, 1), key=two.own)
        two.end(busier)
        two.tell()
        two.tell()
        assert two.own(0) + two.own(1) <= ROOM + 1
    assert two.own(0) == pytest.approx(ROOM / 2, abs=1.5)
    assert two.own(1) == pytest.approx(ROOM / 2, abs=1.5)


def test_room_that_the_other_one_does_not_take_is_used(two: Two) -> None:
    """It stands still, or lies."""
    two.ask(0, 20)
    picker = two.pickers[0]
    picker.admission.set_waiting_at_peers([{0: 2**32 - 1}])
    two.end(0)
    assert two.own(0) == ROOM - 1, "for a moment"
    picker.now += 0.06
    picker.turns()
    assert two.own(0) == ROOM


@pytest.mark.parametrize(("priority", "got"), [(0, ROOM / 2), (-1, ROOM)])
def test_up_to_an_equal_share_nobody_yields_and_not_to_lower_priorities(
    two: Two, priority: int, got: float
) -> None:
    two.pickers[0].admission.set_waiting_at_peers([{priority: 2**32 - 1}])
    two.ask(0, ROOM)
    assert two.own(0) == got
