"""One line when requests of a priority begin to wait, and one when that is over."""

import logging
from typing import Any

import pytest

from epp.flow_control.band_log import BandLog
from epp.request.inference_request import InferenceRequest
from epp.request.rejection import Rejection
from epp.scheduling.waiting import Dequeued


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
