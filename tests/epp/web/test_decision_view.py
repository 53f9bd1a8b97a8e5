import json
from typing import Any

from epp.decisions.ring import DecisionRing
from epp.endpoints.endpoint import Endpoint
from epp.scheduling.decision import Decision
from epp.web.decision_view import DecisionView, decisions_of_all


def view(ring: DecisionRing | None) -> Any:
    return json.loads(DecisionView(ring, lambda: 50.0, lambda: 1050.0).topic())


def decided(name: str, **fields: Any) -> Decision:
    one = Decision(10.0)
    one.request_id = name
    one.picked_at = 10.0
    one.chosen = (Endpoint(id="worker-1", incarnation="1", address="10.0.0.1", port=1, metrics_port=1),)
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
