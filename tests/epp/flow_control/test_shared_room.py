"""Pickers with flow control that tell each other what runs and waits at them share the room of their workers."""

from typing import Any

import pytest

from epp.flow_control.controller import FlowController
from epp.flow_control.settings import FlowControlSettings
from epp.scheduling.in_flight_load.plugins import ConcurrencyDetector
from epp.scheduling.in_flight_load.producer import InFlightLoadProducer
from tests.epp.flow_control.test_flow_control import Held
from tests.epp.scheduling.test_admission import Client, client_of
from tests.epp.scheduling.test_director import store_of

ROOM = 10
TOLD = 0.012
"""Seconds until the other picker knows."""


class Two:
    """Two pickers of one worker; what happens at one is known at the other after TOLD."""

    def __init__(self, messages: Any) -> None:
        self.pickers = []
        for _ in range(2):
            store = store_of("")
            detector = ConcurrencyDetector(InFlightLoadProducer(), requests=ROOM)
            admission = FlowController(FlowControlSettings(), detector, store.pool)
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
            picker.admission.heed_peers(
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
    picker.admission.heed_peers([{0: 2**32 - 1}])
    two.end(0)
    assert two.own(0) == ROOM - 1, "for a moment"
    picker.now += 0.06
    picker.turns()
    assert two.own(0) == ROOM


def test_up_to_an_equal_share_nobody_yields(two: Two) -> None:
    picker = two.pickers[0]
    picker.admission.heed_peers([{0: 2**32 - 1}])
    two.ask(0, ROOM)
    assert two.own(0) == ROOM / 2


def test_lower_priorities_of_others_do_not_count(two: Two) -> None:
    two.pickers[0].admission.heed_peers([{-1: 100}])
    two.ask(0, ROOM)
    assert two.own(0) == ROOM
