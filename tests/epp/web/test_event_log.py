import json
from dataclasses import replace
from typing import Any

import numpy as np

from discovery import Instance, InstanceAddedEvent, InstanceRemovedEvent
from epp.decisions.ring import DecisionRing
from epp.scheduling.decision import Decision
from epp.web.decision_view import DecisionView, decisions_of_all
from epp.web.event_log import MOST, EventLog
from epp.web.pool_view import EndpointStatus
from tests.epp.scheduling.endpoint_pools import make_endpoint


def instance(name: str) -> Instance:
    return Instance(name, "ns", "decode", "10.0.0.1", 8000, "1")


def told(log: EventLog) -> list[Any]:
    return [(one["what"], one["id"], one["why"]) for one in json.loads(log.topic() or b"[]")]


def test_who_came_and_who_went_and_why() -> None:
    log = EventLog()
    log.discovered(InstanceAddedEvent(instance("a")), 1.0)
    log.discovered(InstanceRemovedEvent(instance("a"), "terminating"), 2.0)
    assert told(log) == [("went", "a", "it drains"), ("came", "a", "")]
    assert log.topic() is None, "nothing is new"


def test_of_one_that_is_gone_no_more_is_said_than_is_known() -> None:
    log = EventLog()
    silent = replace(instance("a"), reachable=False)
    log.discovered(
        InstanceRemovedEvent(instance("a"), "deleted"), 1.0, "its process has ended; another may come"
    )
    log.discovered(InstanceRemovedEvent(silent, "deleted"), 2.0)
    log.discovered(InstanceRemovedEvent(instance("a"), "deleted"), 3.0)
    assert [why for _, _, why in told(log)] == [
        "it is no longer listed",
        "it did not answer, and is no longer listed",
        "its process has ended",
    ]


def test_who_is_avoided_and_who_is_back() -> None:
    log, endpoints = EventLog(), (make_endpoint("a"), make_endpoint("b"))

    def look(*found: EndpointStatus) -> list[Any]:
        log.compare(endpoints, np.array(found, dtype=np.int8), {("b", "a"): "it failed"}, 1.0)
        return told(log)

    ready = EndpointStatus.READY
    assert look(ready, ready) == []
    look(EndpointStatus.LATE, EndpointStatus.EJECTED)
    look(EndpointStatus.LATE, EndpointStatus.EJECTED)
    assert look(ready, EndpointStatus.STALE) == [
        ("back", "b", ""),
        ("back", "a", ""),
        ("ejected", "b", "it failed"),
        ("late", "a", "its metrics page did not come in time"),
    ]


def test_an_endpoint_that_went_is_not_back() -> None:
    log = EventLog()
    log.compare((make_endpoint("a"),), np.array([EndpointStatus.LATE], dtype=np.int8), {}, 1.0)
    log.compare((), np.array([], dtype=np.int8), {}, 2.0)
    assert [what for what, _, _ in told(log)] == ["late"]


def test_it_is_bounded() -> None:
    log = EventLog()
    for number in range(10 * MOST):
        log.add(1.0, "came", f"{number}" + "x" * 1000, "10.0.0.1:1" * 100, "y" * 1000)
    found = json.loads(log.topic() or b"")
    assert len(found) == MOST
    assert found[0]["sequence"] == 10 * MOST
    assert all(len(one[name]) <= 300 for one in found for name in ("id", "address", "why"))


def view(ring: DecisionRing | None) -> Any:
    return json.loads(DecisionView(ring, lambda: 50.0, lambda: 1050.0).topic())


def decided(name: str, **fields: Any) -> Decision:
    one = Decision(10.0)
    one.request_id = name
    one.picked_at = 10.0
    one.chosen = (make_endpoint("worker-1", port=1),)
    for field, value in fields.items():
        setattr(one, field, value)
    return one


def test_without_a_ring_there_is_nothing_to_show() -> None:
    assert view(None) is None


def test_the_newest_come_first_and_not_all() -> None:
    ring = DecisionRing(100)
    for number in range(40):
        ring.add(decided(f"r{number}"))
    shown = view(ring)
    assert shown["recorded"] == 40
    assert shown["capacity"] == 100
    assert [one["id"] for one in shown["decisions"]] == [f"r{number}" for number in range(39, 27, -1)]


def test_of_several_processes_the_newest_come_first_and_all_count() -> None:
    rings = [DecisionRing(10), DecisionRing(10)]
    sequences = iter(range(1_000_001, 1_000_100))
    for ring in rings:
        ring.sequences = lambda: next(sequences)
    for number in range(20):
        rings[number % 2].add(decided(f"r{number}"))
    shown = decisions_of_all([view(ring) for ring in rings])
    assert (shown["recorded"], shown["capacity"]) == (20, 20)
    assert [one["id"] for one in shown["decisions"]] == [f"r{number}" for number in range(19, 7, -1)]


def test_what_became_of_a_request_is_shown_when_it_is_known() -> None:
    ring = DecisionRing()
    one = decided("r")
    ring.add(one)
    (shown,) = view(ring)["decisions"]
    assert (shown["at"], shown["state"], shown["status"]) == (1010.0, "sent", None)
    one.status, one.responded_at, one.queued, one.waited, one.picked_at = 200, 10.5, True, 0.25, 10.25
    (shown,) = view(ring)["decisions"]
    assert shown["at"] == 1010.25
    assert (shown["state"], shown["status"], shown["time_to_headers"]) == ("answering", 200, 0.5)
    assert shown["waited"] == 0.25
    assert shown["choice"] == "worker-1"


def test_a_refusal_says_why() -> None:
    ring = DecisionRing()
    ring.add(decided("r", chosen=(), refused_status=429, refused_code="saturated", refused_message="full"))
    (shown,) = view(ring)["decisions"]
    assert (shown["choice"], shown["status"], shown["refusal"]) == (None, 429, "full")
    assert shown["scores"]["best"] == []
