"""What the page says of a queue, from its state."""

import math
from typing import Any

import pytest

from dispatcher.broker.contract.queue import TenantBacklog, Totals
from dispatcher.gates.metering.meter import MeterState
from dispatcher.telemetry.metrics import DispatcherTelemetry
from dispatcher.telemetry.recent_results import STEPS, RecentResults
from dispatcher.web.queue_page import MOST_TENANTS, QueueState, queues_document

NOTHING = RecentResults(DispatcherTelemetry()).of("batch", "pool")
WAITING = Totals(submitted=5, pending=5)
DELAYED = Totals(submitted=2, pending=2, delayed=2)


def state(**given: Any) -> QueueState:
    known = {"name": "batch", "target": "pool", "gate": "constant", "budget": 1.0, "slots": (0, 4)}
    return QueueState(**{**known, "in_flight": 0, "recent": NOTHING, "totals": Totals(), **given})


@pytest.mark.parametrize(
    ("given", "activity", "waits_for"),
    [
        ({}, "idle", ""),
        ({"in_flight": 2}, "sending", ""),
        ({"totals": None, "away": True, "blocked_by": "the broker is away"}, "away", ""),
        ({"totals": None}, "unknown", ""),
        ({"totals": None, "in_flight": 2}, "sending", ""),
        ({"totals": WAITING, "blocked_by": "the budget is 0"}, "waiting", "the budget is 0"),
        ({"totals": WAITING, "slots": (4, 4)}, "waiting", "a free slot: all 4 of the target pool are in use"),
        ({"totals": WAITING, "blocked_tenants": {"a": "its quota"}}, "waiting", "its quota"),
        ({"totals": WAITING}, "waiting", "its turn"),
        ({"totals": DELAYED}, "waiting", "the next attempt, after one that failed"),
        ({"totals": DELAYED, "in_flight": 2}, "sending", ""),
        ({"totals": DELAYED, "blocked_by": "the target is away"}, "waiting", "the target is away"),
        ({"totals": Totals(submitted=1, pending=1, claimed=1)}, "idle", ""),  # by another process
        # a gate that lets through what there is room for closes again and again
        ({"totals": WAITING, "in_flight": 3, "blocked_by": "full", "blocked_for": 1.0}, "sending", ""),
        ({"totals": WAITING, "in_flight": 3, "blocked_by": "full", "blocked_for": 60.0}, "waiting", "full"),
    ],
)
def test_what_a_queue_does_and_waits_for(given: dict[str, Any], activity: str, waits_for: str) -> None:
    found = state(**given)
    assert (found.activity, found.waits_for) == (activity, waits_for)


def test_a_number_that_makes_no_sense_is_not_known() -> None:
    meters = [MeterState("load", math.nan, math.inf, False, "x" * 5000)]
    document = queues_document([state(budget=math.inf, meters=meters)], 0.0, "")
    [gate] = document["gates"]
    assert (gate["value"], gate["closes_at"], document["queues"][0]["budget"]) == (None, None, None)
    assert len(gate["reason"]) < 310


def test_tenants_are_bounded_in_number_and_length() -> None:
    backlog = [TenantBacklog(f"{n}-{'t' * 1000}", 1, 0) for n in range(MOST_TENANTS)]
    blocked = {f"blocked-{n}": "its quota" for n in range(1000)}
    rows = queues_document([state(backlog=backlog, blocked_tenants=blocked)], 0.0, "")["tenants"]
    assert len(rows) == MOST_TENANTS
    assert max(len(row["tenant"]) for row in rows) < 310


def _count(telemetry: DispatcherTelemetry, succeeded: int, failed: int = 0, seconds: float = 0.3) -> None:
    counters = telemetry.of("batch", "pool")
    counters.counters["successful_requests"] += succeeded
    counters.counters["failed_requests"] += failed
    for _ in range(succeeded + failed):
        counters.inference_ms.observe(seconds * 1000)


def test_the_results_of_the_last_minutes_forget_what_is_older() -> None:
    telemetry = DispatcherTelemetry()
    recent = RecentResults(telemetry)
    _count(telemetry, 3, seconds=9)
    assert recent.of("batch", "pool").steps == [(3, 0)]
    recent.sample()
    _count(telemetry, 5, failed=2)
    found = recent.of("batch", "pool")
    assert (found.counts["succeeded"], found.counts["failed"], found.steps) == (8, 2, [(3, 0), (5, 2)])
    for _ in range(STEPS - 1):
        recent.sample()
    found = recent.of("batch", "pool")
    assert (found.counts["succeeded"], found.counts["failed"], len(found.steps)) == (5, 2, STEPS)
    assert found.latency["p95"] == pytest.approx(0.4875), "between 250 and 500 ms, without the slow ones"
    recent.sample()
    found = recent.of("batch", "pool")
    assert (found.counts["succeeded"], found.latency) == (0, {"p50": None, "p95": None})


def test_a_queue_that_came_later_is_counted_from_its_start() -> None:
    telemetry = DispatcherTelemetry()
    recent = RecentResults(telemetry)
    for _ in range(STEPS):
        recent.sample()
    _count(telemetry, 4, seconds=1000)
    found = recent.of("batch", "pool")
    assert (found.counts["succeeded"], found.steps[-1]) == (4, (4, 0))
    assert found.latency["p50"] == 300.0, "the last bound, for what is above it"
