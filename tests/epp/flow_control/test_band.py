"""The requests of one priority that wait: what remains of those that left, orders that are none, and the lines of the log."""

import gc
import logging
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from epp.flow_control.band_log import BandLog
from epp.flow_control.bands import Band
from epp.flow_control.fairness import Flow, RoundRobin
from epp.flow_control.flow_queue import FlowQueue, QueuedRequest
from epp.flow_control.settings import PriorityBand
from epp.request.inference_request import InferenceRequest
from epp.request.rejection import Rejection
from epp.scheduling.waiting import Dequeued
from tests.epp.flow_control.flow_settings import band_settings


def queued(number: int, fairness_id: str = "a") -> QueuedRequest:
    request = InferenceRequest(str(number), "/v1/completions", {})
    request.fairness_id, request.body_size = fairness_id, 10
    return QueuedRequest(request, float(number), 60.0, number)


def band_of(settings: PriorityBand | None = None) -> Band:
    return Band(0, settings or band_settings(), on_demand=False, now=0.0)


@pytest.mark.parametrize("settings", [band_settings(), band_settings(fairness=RoundRobin())])
def test_hardly_anything_remains_of_flows_and_requests_that_left(settings: PriorityBand) -> None:
    """A client may name a flow of its own for each request."""
    band = band_of(settings)
    band.add(queued(0))
    for number in range(1, 2000):
        one = queued(number, f"flow {number}")
        band.add(one)
        band.remove(one)
    gc.collect()
    assert sum(isinstance(one, QueuedRequest) for one in gc.get_objects()) < 50
    assert sum(isinstance(one, FlowQueue) for one in gc.get_objects()) < 50
    assert band.take().sequence == 0
    assert (len(band.waiting), band.bytes) == (0, 0)


def test_many_that_leave_from_the_middle_leave_no_heap() -> None:
    band = band_of()
    all_of = [queued(number) for number in range(1000)]
    for one in all_of:
        band.add(one)
    for one in all_of[1:-1]:
        band.remove(one)
    assert [band.take().sequence, band.take().sequence] == [0, 999]


@dataclass(frozen=True)
class NoOrder:
    def rank(self, queued: QueuedRequest) -> float:
        return float("nan") if queued.sequence % 2 else 0.0


def test_a_rank_that_is_no_number_comes_last() -> None:
    band = band_of(band_settings(ordering=NoOrder()))
    for number in range(6):
        band.add(queued(number))
    assert [band.take().sequence for _ in range(6)] == [0, 2, 4, 1, 3, 5]


class Forgetful:
    """A fairness policy of somebody else's that names nobody."""

    shares_places = False

    def selector(self) -> "Forgetful":
        return self

    def changed(self, flow: Flow) -> None: ...

    def select(self) -> Flow | None:
        return None

    def dispatched(self, flow: Flow, queued: QueuedRequest) -> None: ...


def test_a_policy_that_names_nobody_is_a_fault() -> None:
    band = band_of(band_settings(fairness=Forgetful()))
    band.add(queued(1))
    with pytest.raises(RuntimeError, match="named no flow"):
        band.take()


def test_in_a_full_band_the_longest_flow_gives_way_where_flows_take_turns() -> None:
    band = band_of(band_settings(max_requests=4, fairness=RoundRobin()))
    for sequence, name in enumerate("aaab"):
        band.add(queued(sequence, name))
    assert band.over(1)[0] == 1
    (gives,) = band.gives_way("c", 1, *band.over(1))
    assert (gives.request.fairness_id, gives.sequence) == ("a", 2)
    assert band.gives_way("b", 1, *band.over(1)) == [gives]
    assert band.gives_way("a", 1, *band.over(1)) == []
    band.remove(gives)
    band.add(queued(4, "c"))
    assert band.gives_way("c", 1, *band.over(1)) == []  # it would have as many as the longest


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        (band_settings(max_requests=3), 1),
        (band_settings(max_requests=3, max_bytes=100, fairness=RoundRobin()), 101),
    ],
    ids=["flows are as one", "the body would not fit"],
)
def test_nobody_gives_way(settings: PriorityBand, size: int) -> None:
    band = band_of(settings)
    for sequence in range(3):
        band.add(queued(sequence, "a"))
    assert band.gives_way("b", size, *band.over(size)) == []


def test_in_a_band_full_of_bytes_the_flow_with_most_of_them_gives_way() -> None:
    """It has few requests, and the newest of them go, as many as the new one needs."""
    band = band_of(band_settings(max_bytes=100, fairness=RoundRobin()))
    for sequence, (name, size) in enumerate(
        [("huge", 30), ("huge", 30), ("small", 5), ("small", 5), ("small", 5)]
    ):
        one = queued(sequence, name)
        one.size = size
        band.add(one)

    def gives(name: str, size: int) -> list[int]:
        return [one.sequence for one in band.gives_way(name, size, *band.over(size))]

    assert gives("new", 40) == [1]
    assert gives("new", 56) == [1, 0]
    assert gives("new", 60) == []  # it would have as much
    assert gives("small", 44) == [1]
    assert gives("small", 45) == []
    assert gives("huge", 30) == []
    band.remove(band.gives_way("new", 40, *band.over(40))[0])
    assert gives("small", 60) == []


def test_the_heaviest_flow_is_known_whatever_came_and_left() -> None:
    rng = random.Random(4)
    band, waiting = band_of(band_settings(max_bytes=1, fairness=RoundRobin())), list[QueuedRequest]()
    for sequence in range(3000):
        if waiting and rng.random() < 0.49:
            band.remove(waiting.pop(rng.randrange(len(waiting))))
        else:
            one = queued(sequence, rng.choice("abcdefgh"))
            one.size = rng.randrange(1000)
            band.add(one)
            waiting.append(one)
        held = Counter[str]()
        for one in waiting:
            held[one.request.fairness_id] += one.size
        gives = band.gives_way("new", 0, 0, 1)
        most = max(held.values(), default=0)
        assert not most or held[gives[0].request.fairness_id] == most


class Ear:
    """A `QueueObserver` that counts."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def queued(self, request: InferenceRequest, now: float) -> None:
        self.heard.append("queued")

    def dequeued(self, request: InferenceRequest, how: Dequeued, waited: float, now: float) -> None:
        self.heard.append(how.value)

    def turned_away(self, request: InferenceRequest, rejection: Rejection, now: float) -> None:
        self.heard.append("turned away")


@pytest.fixture
def bands(caplog: pytest.LogCaptureFixture) -> BandLog:
    caplog.set_level(logging.INFO)
    made = BandLog(Ear(), lambda: "the saturation of the pool is 1.25")
    made.enabled = True
    return made


def request(priority: int = 0) -> InferenceRequest:
    made = InferenceRequest("id", "/v1/completions", {})
    made.priority = priority
    return made


FULL = Rejection(429, "saturated", "full")


def test_a_wait_has_two_lines(bands: BandLog, caplog: pytest.LogCaptureFixture) -> None:
    first, second, third = (request() for _ in range(3))
    bands.queued(first, 10.0)
    bands.queued(second, 10.5)
    assert caplog.messages == ["requests of priority 0 wait: the saturation of the pool is 1.25"]
    bands.turned_away(request(), FULL, 11.0)
    bands.dequeued(first, Dequeued.DISPATCHED, 2.0, 12.0)
    bands.dequeued(second, Dequeued.EXPIRED, 3.0, 13.5)
    assert bands.end_spells(14.0), "it may go on"
    bands.queued(third, 15.0)
    bands.dequeued(third, Dequeued.ABANDONED, 1.0, 16.0)
    assert bands.end_spells(20.0)
    assert len(caplog.messages) == 1
    assert not bands.end_spells(21.0)
    counts = "1 dispatched, 1 abandoned by their clients, 1 expired, 1 turned away by a full queue"
    took = "it took 6.0 s, the longest wait was 3.0 s"
    assert caplog.messages[1:] == [f"requests of priority 0 wait no more: {took}; {counts}"]
    bands.queued(first, 30.0)
    assert len(caplog.messages) == 3


def test_each_priority_has_its_own(bands: BandLog, caplog: pytest.LogCaptureFixture) -> None:
    low, high = request(-1), request(5)
    bands.queued(low, 1.0)
    bands.queued(high, 1.0)
    bands.dequeued(high, Dequeued.DISPATCHED, 1.0, 2.0)
    assert bands.end_spells(60.0), "the other one goes on"
    assert [message.partition(":")[0] for message in caplog.messages] == [
        "requests of priority -1 wait",
        "requests of priority 5 wait",
        "requests of priority 5 wait no more",
    ]


def test_without_flow_control_nothing_is_logged(bands: BandLog, caplog: pytest.LogCaptureFixture) -> None:
    """The window for bursts lets each prompt wait for a moment."""
    bands.enabled = False
    bands.queued(request(), 1.0)
    bands.enabled = True
    bands.dequeued(request(), Dequeued.DISPATCHED, 0.1, 1.1)
    bands.turned_away(request(), FULL, 1.2)
    assert not bands.end_spells(60.0)
    assert caplog.messages == []


def test_all_is_told_to_the_other_observer() -> None:
    ear = Ear()
    bands: Any = BandLog(ear, lambda: "")
    bands.queued(request(), 1.0)
    bands.dequeued(request(), Dequeued.REFUSED, 1.0, 2.0)
    bands.turned_away(request(), FULL, 2.0)
    assert ear.heard == ["queued", "refused", "turned away"]
