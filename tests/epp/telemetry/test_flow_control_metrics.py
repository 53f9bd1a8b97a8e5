"""The metrics of flow control: names, words and counts are the Go picker's."""

from typing import Any

import numpy as np
import pytest
from prometheus_client import generate_latest

from epp.endpoints.endpoint import NO_ADAPTERS, NO_NUMBERS, Column, Endpoint, EndpointPool
from epp.ext_proc.response_body import ResponseHead
from epp.flow_control.controller import FlowController
from epp.flow_control.eviction import InFlightEviction
from epp.flow_control.flow_queue import QueuedRequest
from epp.request.rejection import Rejection
from epp.scheduling.in_flight_load.plugins import ConcurrencyDetector
from epp.scheduling.in_flight_load.producer import InFlightLoadProducer
from epp.scheduling.saturation import UtilizationDetector
from epp.scheduling.waiting import Dequeued
from epp.telemetry.counters import Telemetry
from epp.telemetry.flow_control_metrics import BandGauges, RevocationMetrics
from tests.epp.flow_control.flow_settings import band_settings, flow_settings

QUEUE = "llm_d_epp_flow_control_request_queue_duration_seconds"
M = {"model_name": "m", "target_model_name": "m", "fairness_id": "default-flow", "priority": "0"}
LABELS = M | {"inference_pool": "pool", "outcome": "Dispatched"}


@pytest.fixture
def telemetry() -> Telemetry:
    made = Telemetry(pool_name="pool")
    made.flow_control.enabled = True
    return made


def outcomes(telemetry: Telemetry) -> dict[tuple[str, str], float]:
    family = next(one for one in telemetry.collect() if one.name == "llm_d_epp_flow_control_requests")
    assert all(sample.labels["inference_pool"] == "pool" for sample in family.samples)
    return {(one.labels["outcome"], one.labels["priority"]): one.value for one in family.samples}


def test_who_goes_at_once_waited_for_0_seconds(telemetry: Telemetry, picking: Any) -> None:
    value = telemetry.registry.get_sample_value
    for _ in range(3):
        telemetry.picked(picking("10.0.0.1:8000"), 1.0)
    assert value(f"{QUEUE}_count", LABELS) == value(f"{QUEUE}_bucket", LABELS | {"le": "0.0001"}) == 3
    waited = picking("10.0.0.1:8000")
    telemetry.queued(waited.request, 1.0)
    telemetry.dequeued(waited.request, Dequeued.DISPATCHED, 2.0, 3.0)
    telemetry.picked(waited, 3.0)
    assert value(f"{QUEUE}_count", LABELS) == 4
    assert value(f"{QUEUE}_bucket", LABELS | {"le": "1.0"}) == 3
    assert value(f"{QUEUE}_sum", LABELS) == 2.0
    assert outcomes(telemetry) == {("Dispatched", "0"): 4}


@pytest.mark.parametrize(
    ("how", "outcome"),
    [
        (Dequeued.ABANDONED, "EvictedContextCancelled"),
        (Dequeued.REFUSED, "EvictedOther"),
        (Dequeued.EXPIRED, "EvictedTTL"),
        (Dequeued.NO_ENDPOINTS, "EvictedNoEndpoints"),
    ],
)
def test_who_leaves_the_queue_is_counted_once(
    telemetry: Telemetry, picking: Any, how: Dequeued, outcome: str
) -> None:
    request = picking("10.0.0.1:8000").request
    request.priority = -1
    telemetry.queued(request, 1.0)
    telemetry.dequeued(request, how, 2.0, 3.0)
    assert outcomes(telemetry) == {(outcome, "-1"): 1}


@pytest.mark.parametrize(
    ("status", "reason", "outcome"),
    [
        (429, "rejected-saturated", "RejectedCapacity"),
        (503, "rejected-no-endpoints", "RejectedNoEndpoints"),
        (503, "rejected-shutting-down", "RejectedOther"),
        (503, None, "RejectedOther"),
    ],
)
def test_who_cannot_wait_is_counted_too(
    telemetry: Telemetry, picking: Any, status: int, reason: str | None, outcome: str
) -> None:
    request = picking("10.0.0.1:8000").request
    telemetry.turned_away(request, Rejection(status, "c", "m", reason=reason), 1.0)
    assert outcomes(telemetry) == {(outcome, "0"): 1}


def test_nothing_is_said_of_it_where_it_is_off(picking: Any) -> None:
    telemetry = Telemetry()
    telemetry.picked(picking("10.0.0.1:8000"), 1.0)
    assert b"flow_control" not in generate_latest(telemetry.registry)


def pool(*ages: float) -> EndpointPool:
    """Endpoints whose pages were read so many seconds ago."""
    names = [str(number) for number in range(len(ages))]
    endpoints = [Endpoint(id=n, incarnation="1", address="10.0.0.1", port=1, metrics_port=1) for n in names]
    numbers = np.tile(NO_NUMBERS, len(ages))
    numbers[Column.SCRAPED_AT] = [100.0 - age for age in ages]
    return EndpointPool(endpoints, numbers, [NO_ADAPTERS] * len(ages), 100.0)


def gauges(controller: FlowController | None, *ages: float) -> dict[tuple[str, ...], float]:
    collector = BandGauges("pool", lambda: controller, lambda: pool(*ages), lambda: "mine")
    return {
        (one.name.removeprefix("llm_d_epp_flow_control_"), *sample.labels.values()): sample.value
        for one in collector.collect()
        for sample in one.samples
    }


def test_how_full_the_queues_are(picking: Any) -> None:
    bands = {1: band_settings(max_requests=4, max_bytes=1000)}
    settings = flow_settings(bands=bands, max_requests=10)
    controller = FlowController(settings, UtilizationDetector(), lambda now: pool(0.0))
    for number in range(3):
        request = picking("10.0.0.1:8000").request
        request.body_size = 200
        controller.bands[0].add(QueuedRequest(request, 1.0, 60.0, number))
    assert gauges(controller, 0.0, 0.1, 5.0) == {
        ("capacity_utilization_requests", "1", "pool"): 0.75,
        ("capacity_utilization_requests", "0", "pool"): 0.0,
        ("capacity_utilization_bytes", "1", "pool"): 0.6,
        ("capacity_utilization_bytes", "0", "pool"): 0.0,
        ("global_capacity_utilization_requests", "pool"): 0.3,
        ("stale_endpoints", "mine"): 1,
    }


def test_no_page_is_stale_for_who_reads_none() -> None:
    detector = ConcurrencyDetector(InFlightLoadProducer())
    controller = FlowController(flow_settings(), detector, lambda now: pool())
    assert not [name for name, *_ in gauges(controller, 5.0) if name == "stale_endpoints"]
    assert gauges(None, 5.0) == {}


def test_who_wants_to_know_is_told_what_an_answer_used(picking: Any) -> None:
    telemetry = Telemetry()
    told: list[Any] = []
    telemetry.on_usage = [lambda *said: told.append(said)]
    pick = picking("10.0.0.1:8000")
    telemetry.picked(pick, 1.0)
    reader = telemetry.read_answer(pick, ResponseHead(200, {"content-type": "application/json"}), 1.0, 2.0)
    assert reader is not None
    reader.read(b'{"usage": {"prompt_tokens": 7, "completion_tokens": 3}}', 2.0)
    reader.end(3.0)
    assert told == [(pick.request, 7, 3)]


def revocations(eviction: InFlightEviction, now: float) -> dict[tuple[str, ...], float]:
    collector = RevocationMetrics("pool", lambda: eviction, lambda: now)
    return {
        (sample.name.removeprefix("llm_d_epp_flow_control_"), *sample.labels.values()): sample.value
        for family in collector.collect()
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    }


def test_what_became_of_requests_that_were_taken_back(picking: Any) -> None:
    eviction = InFlightEviction(UtilizationDetector())
    picks = [picking("10.0.0.1:8000") for _ in range(3)]
    for pick in picks:
        pick.request.priority = -1
        pick.evict = lambda rejection, now: True
        eviction.began(pick)
    eviction.reclaim(5, over=0.3, share=0.1, now=100.0)
    taken = revocations(eviction, 100.0)
    assert taken["revocations_issued_total", "5", "pool"] == 2
    assert taken["reclaim_target", "pool"] == 0.3
    assert taken["pending_reclaim", "pool"] == pytest.approx(0.2)
    eviction.ended(picks[2], 100.25)
    eviction.ended(picks[2], 100.25)
    eviction.reclaim(5, over=0.3, share=0.1, now=111.0)
    later = revocations(eviction, 111.0)
    assert later["revocations_total", "confirmed", "pool"] == 1
    assert later["revocations_total", "timed_out", "pool"] == 1
    assert later["revocation_confirmation_seconds_sum", "pool"] == 0.25
    assert later["revocations_issued_total", "5", "pool"] == 3
    eviction.ended(picks[0], 111.0)
    assert revocations(eviction, 112.0)["pending_reclaim", "pool"] == 0
    assert list(RevocationMetrics("pool", lambda: None, lambda: 1.0).collect()) == []
