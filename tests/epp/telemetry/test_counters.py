import json
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.samples import Sample

from epp.ext_proc.request_report import Observer
from epp.ext_proc.response_body import ResponseHead
from epp.request.inference_request import InferenceRequest
from epp.request.rejection import Rejection
from epp.scheduling.pick import Pick
from epp.scheduling.waiting import Dequeued, WaitingRequest
from epp.telemetry.counters import Telemetry
from epp.telemetry.picker_metrics import RewriteDecisions
from epp.telemetry.request_tally import HISTOGRAM_SETS, UNUSED_AFTER, UNUSED_AFTER_AT_LIMIT
from tests.epp.scheduling.fifo import Fifo
from tests.epp.scheduling.test_director import NOW, direct, director, store_of

M = {"model_name": "m", "target_model_name": "m", "fairness_id": "default-flow", "priority": "0"}
NOBODY = dict.fromkeys(M, "")


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry()


def test_a_request_that_was_served(telemetry: Telemetry, picking: Any) -> None:
    pick = picking("10.0.0.1:8000")
    value = telemetry.registry.get_sample_value
    telemetry.picked(pick, 1)
    assert value("llm_d_epp_request_total", M) == 1
    assert value("llm_d_epp_request_running", M) == 1
    telemetry.responded(pick, 200, 2)
    telemetry.released(pick, 1, 3.5)
    assert value("llm_d_epp_request_running", M) == 0
    assert value("llm_d_epp_request_duration_seconds_sum", M) == 2.5
    assert value("llm_d_epp_request_error_total", M | {"error_code": "ModelServerError"}) is None


def test_durations_fall_into_buckets_that_count_those_below_too(telemetry: Telemetry, picking: Any) -> None:
    for seconds in (0.0, 0.005, 0.006, 3600.0, 10_000.0):
        telemetry.released(picking("10.0.0.1:8000"), 0.0, seconds)
    name = "llm_d_epp_request_duration_seconds"
    value = telemetry.registry.get_sample_value
    found = [value(f"{name}_bucket", M | {"le": le}) for le in ("0.005", "0.025", "2700.0", "3600.0", "+Inf")]
    assert found == [2, 3, 3, 4, 5]
    assert value(f"{name}_count", M) == 5


@pytest.mark.parametrize(("status", "counted"), [(399, None), (400, 1), (502, 1)])
def test_a_workers_error(telemetry: Telemetry, picking: Any, status: int, counted: int | None) -> None:
    telemetry.responded(picking("10.0.0.1:8000"), status, 2)
    labels = M | {"error_code": "ModelServerError"}
    assert telemetry.registry.get_sample_value("llm_d_epp_request_error_total", labels) == counted


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "BadRequest"),
        (404, "NotFound"),
        (429, "ResourceExhausted"),
        (503, "ServiceUnavailable"),
        (599, "Internal"),
    ],
)
def test_a_rejection(telemetry: Telemetry, status: int, code: str) -> None:
    telemetry.rejected(Rejection(status, "c", "m"), 1)
    value = telemetry.registry.get_sample_value
    assert value("llm_d_epp_request_total", NOBODY) == 1
    assert value("llm_d_epp_request_error_total", NOBODY | {"error_code": code}) == 1


def samples(telemetry: Telemetry, name: str = "llm_d_epp_request_total") -> list[Sample]:
    return [one for family in telemetry.registry.collect() for one in family.samples if one.name == name]


def counted(telemetry: Telemetry, name: str = "llm_d_epp_request_total") -> dict[str, float]:
    """By model."""
    return {one.labels["model_name"]: one.value for one in samples(telemetry, name)}


def test_a_client_cannot_make_labels_without_end(picking: Any) -> None:
    telemetry = Telemetry(label_sets=2)
    for name in ("a", "b", "c", "d", "a"):
        pick = picking("10.0.0.1:8000")
        pick.request.model = name
        telemetry.picked(pick, 1)
        telemetry.released(pick, 1, 2)
    assert counted(telemetry) == {"a": 2, "b": 1, "other": 2}


def test_models_times_fairness_ids_are_bounded_together(picking: Any) -> None:
    telemetry = Telemetry(label_sets=5)
    for number in range(100):
        pick = picking("10.0.0.1:8000")
        request = pick.request
        request.model, request.fairness_id, request.priority = f"m{number % 10}", f"f{number}", number % 2
        telemetry.picked(pick, 1)
        telemetry.released(pick, 1, 2)
    found = [one.labels for one in samples(telemetry)]
    assert len(found) == 7
    other = {"model_name": "other", "target_model_name": "other", "fairness_id": "other"}
    assert [labels for labels in found if labels["model_name"] == "other"] == [
        other | {"priority": "1"},
        other | {"priority": "0"},
    ]
    assert [one.value for one in samples(telemetry, "llm_d_epp_request_running")] == [0] * 7


def test_a_client_cannot_make_labels_of_any_length(picking: Any) -> None:
    telemetry = Telemetry()
    for name in ("a" * 256, "b" * 257, "c" * 10**6):
        pick = picking("10.0.0.1:8000")
        pick.request.model = pick.request.fairness_id = name
        telemetry.picked(pick, 1)
    for label in ("model_name", "fairness_id"):
        assert {one.labels[label] for one in samples(telemetry)} == {"a" * 256, "other"}


def _page_of_strangers(picking: Any, requests: int, length: int, usage: bytes = b"") -> bytes:
    """The page after so many requests, each with a fairness id and a model of its own, `length` characters long."""
    telemetry = Telemetry()
    for number in range(requests):
        pick = picking("10.0.0.1:8000")
        request = pick.request
        request.body_size, request.prompt_size = 400, 300
        request.model, request.fairness_id = (f"{kind}{number:0{length - 1}}" for kind in "mf")
        telemetry.picked(pick, 1)
        telemetry.responded(pick, 500, 2)
        if usage:
            request.streaming = number % 2 == 0
            reader = telemetry.read_answer(
                pick, ResponseHead(200, {"content-type": "application/json"}), 1, 2
            )
            assert reader is not None
            reader.read(usage[:20], 2)
            reader.read(usage[20:], 3)
            reader.end(3)
        telemetry.released(pick, 1, 2)
    return generate_latest(telemetry.registry)


@pytest.mark.parametrize("length", [6, 16, 30, 60, 250])
def test_a_client_cannot_make_the_page_large(picking: Any, length: int) -> None:
    assert len(_page_of_strangers(picking, 2000, length)) < 2_300_000
    used = {"prompt_tokens": 9, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 1}}
    measured = len(_page_of_strangers(picking, 2000, length, json.dumps({"usage": used}).encode()))
    assert measured < 4_200_000


def test_models_keep_their_histograms_whatever_fairness_ids_clients_invent(picking: Any) -> None:
    telemetry = Telemetry()
    for number in range(500):
        pick = picking("10.0.0.1:8000")
        pick.request.model, pick.request.fairness_id = ("a", "b")[number % 2], f"f{number}"
        telemetry.picked(pick, 1)
        telemetry.released(pick, 1, 2)
    counts = {
        (one.labels["model_name"], one.labels["fairness_id"]): one.value
        for one in samples(telemetry, "llm_d_epp_request_duration_seconds_count")
    }
    assert len(counts) == HISTOGRAM_SETS + 2
    assert counts["a", "f0"] == 1
    assert sum(counts.values()) == 500
    assert counts["a", "other"] + counts["b", "other"] == 500 - HISTOGRAM_SETS
    value = telemetry.registry.get_sample_value
    older = {"model_name": "a", "target_model_name": "a"}
    assert value("inference_objective_request_duration_seconds_count", older) == 250


def test_picks_are_timed_and_what_waits_only_when_it_goes(telemetry: Telemetry) -> None:
    it = director(store_of("m"), admission=Fifo(1))
    it.timings, it.clock = telemetry, iter([1.0, 1.25, 2.0, 2.5, 3.0, 3.125]).__next__
    pick = direct(it)
    assert isinstance(direct(it), WaitingRequest)
    value = telemetry.registry.get_sample_value
    assert value("llm_d_epp_scheduler_e2e_duration_seconds_sum") == 0.25
    it.picks.release(pick, NOW)
    it.dispatch(NOW)
    assert value("llm_d_epp_scheduler_e2e_duration_seconds_sum") == 0.375
    assert value("llm_d_epp_scheduler_e2e_duration_seconds_count") == 2


BREAKS = [*"\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\x00\x7f\x9b"]


@pytest.mark.parametrize("break_", BREAKS, ids=[f"U+{ord(one):04X}" for one in BREAKS])
def test_a_client_cannot_begin_a_line_of_the_page(telemetry: Telemetry, picking: Any, break_: str) -> None:
    """Whoever reads it, and whatever that takes for the end of a line."""
    pick = picking("10.0.0.1:8000")
    pick.request.model = pick.request.fairness_id = f"a{break_}llm_d_epp_ready_endpoints 1000{break_}b"
    telemetry.picked(pick, 1)
    telemetry.released(pick, 1, 2)
    page = generate_latest(telemetry.registry).decode()
    assert page.splitlines() == page.split("\n")[:-1]
    assert [line for line in page.splitlines() if line.startswith("llm_d_epp_ready_endpoints")] == []
    assert "allm_d_epp_ready_endpoints 1000b" in page
    assert break_ not in page.replace("\n", "")


def test_names_that_differ_in_what_is_not_shown_take_no_room(picking: Any) -> None:
    telemetry = Telemetry(label_sets=3)
    for number in range(100):
        pick = picking("10.0.0.1:8000")
        pick.request.model = "a" + "\x00" * number
        telemetry.picked(pick, 1)
    assert counted(telemetry) == {"a": 100}


def test_labels_that_nobody_uses_make_room(picking: Any) -> None:
    telemetry = Telemetry(label_sets=3)

    def pick(name: str, now: float) -> Any:
        made = picking("10.0.0.1:8000")
        made.request.model = name
        telemetry.picked(made, now)
        return made

    telemetry.released(pick("attacker", 100), 100, 101)
    telemetry.released(pick("another", 100), 100, 101)
    runs = pick("runs", 100)
    early = pick("honest", 200)
    assert counted(telemetry) == {"attacker": 1, "another": 1, "runs": 1, "other": 1}
    later = pick("honest", 100 + UNUSED_AFTER_AT_LIMIT + 1)
    assert counted(telemetry) == {"runs": 1, "other": 1, "honest": 1}, "what runs stays, however old it is"
    for one in (early, runs, later):
        telemetry.released(one, 100, 500)
    assert counted(telemetry, "llm_d_epp_request_running") == {"runs": 0, "other": 0, "honest": 0}


def test_labels_that_nobody_uses_are_shown_no_longer(picking: Any) -> None:
    telemetry = Telemetry()
    for name, now in (
        ("once", 100),
        ("again", 100),
        ("again", 90 + UNUSED_AFTER),
        ("again", 111 + UNUSED_AFTER),
    ):
        made = picking("10.0.0.1:8000")
        made.request.model = name
        telemetry.picked(made, now)
        telemetry.released(made, now, now)
    assert counted(telemetry) == {"again": 3}


def test_nothing_is_said_of_queues_where_nothing_waited(telemetry: Telemetry, picking: Any) -> None:
    telemetry.picked(picking("10.0.0.1:8000"), 1)
    assert b"flow_control_queue" not in generate_latest(telemetry.registry)


@pytest.mark.parametrize(
    ("how", "outcome"),
    [
        (Dequeued.DISPATCHED, "Dispatched"),
        (Dequeued.ABANDONED, "EvictedContextCancelled"),
        (Dequeued.REFUSED, "EvictedOther"),
        (Dequeued.EXPIRED, "EvictedTTL"),
        (Dequeued.NO_ENDPOINTS, "EvictedNoEndpoints"),
    ],
)
def test_a_request_that_waits(picking: Any, how: Dequeued, outcome: str) -> None:
    """Names and words of the Go picker's flow control."""
    telemetry = Telemetry(pool_name="pool")
    value = telemetry.registry.get_sample_value
    queue = M | {"inference_pool": "pool"}
    request, other = (picking("10.0.0.1:8000").request for _ in range(2))
    request.body_size, other.body_size = 700, 50
    telemetry.queued(request, 1)
    telemetry.queued(other, 1)
    assert value("llm_d_epp_flow_control_queue_size", queue) == 2
    assert value("llm_d_epp_flow_control_queue_bytes", queue) == 750
    telemetry.dequeued(request, how, 0.25, 1.25)
    assert value("llm_d_epp_flow_control_queue_size", queue) == 1
    assert value("llm_d_epp_flow_control_queue_bytes", queue) == 50
    name, ended = "llm_d_epp_flow_control_request_queue_duration_seconds", queue | {"outcome": outcome}
    assert value(f"{name}_sum", ended) == 0.25
    found = [value(f"{name}_bucket", ended | {"le": le}) for le in ("0.1", "0.25", "60.0", "+Inf")]
    assert found == [0, 1, 1, 1]


def test_a_set_of_labels_is_kept_while_one_of_them_waits(picking: Any) -> None:
    telemetry = Telemetry()
    waiting, later = picking("10.0.0.1:8000"), picking("10.0.0.1:8000")
    later.request.model = "other"
    telemetry.queued(waiting.request, 1)
    telemetry.picked(later, 2 * UNUSED_AFTER)
    queue = M | {"inference_pool": ""}
    assert telemetry.registry.get_sample_value("llm_d_epp_flow_control_queue_size", queue) == 1
    telemetry.dequeued(waiting.request, Dequeued.DISPATCHED, 2 * UNUSED_AFTER, 2 * UNUSED_AFTER)
    assert telemetry.registry.get_sample_value("llm_d_epp_flow_control_queue_size", queue) == 0


NAME = "llm_d_epp_model_rewrite_decisions_total"


def value(registry: CollectorRegistry, rule: str, model: str, target: str) -> float | None:
    labels = {"model_rewrite_name": rule, "model_name": model, "target_model": target}
    return registry.get_sample_value(NAME, labels)


def test_decisions_are_counted_by_rule_and_both_models() -> None:
    registry, decisions = CollectorRegistry(), RewriteDecisions()
    registry.register(decisions)
    assert not list(decisions.collect())
    for target in ("b", "c", "c"):
        decisions.count("canary", "a", target)
    assert (value(registry, "canary", "a", "b"), value(registry, "canary", "a", "c")) == (1, 2)


def test_a_client_cannot_make_more_series_than_there_may_be() -> None:
    registry, decisions = CollectorRegistry(), RewriteDecisions(label_sets=10)
    registry.register(decisions)
    for number in range(1_000):
        decisions.count("any", f"model-{number}", "b")
    assert value(registry, "any", "model-9", "b") == 1
    assert value(registry, "any", "other", "b") == 990
    assert len(next(iter(decisions.collect())).samples) == 11


def test_requests_are_counted_by_the_clients_model_and_by_the_one_that_serves() -> None:
    telemetry = Telemetry()
    observer: Observer = telemetry
    for served in ("llama", "llama", None):
        request = InferenceRequest("r", "/", {}, "gpt")
        if served is not None:
            request.rewrite(served)
        pick = Pick(request, ())
        observer.picked(pick, 0.0)
        observer.released(pick, 0.0, 1.0)
    by_target = {one.labels["target_model_name"]: one.value for one in samples(telemetry)}
    assert (by_target, set(counted(telemetry))) == ({"llama": 2, "gpt": 1}, {"gpt"})
