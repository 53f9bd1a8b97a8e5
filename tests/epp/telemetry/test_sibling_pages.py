from typing import Any

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from epp.telemetry.sibling_pages import Counted, Family, families, merged, metrics, note, status_of_all

RUNNING = "llm_d_epp_request_running"


def told(requests: int, running: int, saturation: float, model: str = "m") -> list[Family]:
    counter = CounterMetricFamily("llm_d_epp_request", "Requests.", labels=("model_name",))
    counter.add_metric((model,), requests)
    gauge = GaugeMetricFamily(RUNNING, "Running.", labels=("model_name",))
    gauge.add_metric((model,), running)
    histogram = HistogramMetricFamily("llm_d_epp_seconds", "Seconds.")
    histogram.add_metric((), [("1.0", requests), ("+Inf", requests + 1)], 2.5)
    return families([counter, gauge, histogram, GaugeMetricFamily("llm_d_epp_full", "Full.", saturation)])


def value(found: list[Family], sample: str, **labels: str) -> float:
    [only] = [
        of
        for one in found
        for name, given, of in one.samples
        if name == sample and labels.items() <= given.items()
    ]
    return only


def test_counts_and_requests_in_flight_are_sums_and_the_pool_is_that_of_who_answers() -> None:
    found = merged(told(5, 2, 0.25), [told(7, 1, 0.5), told(1, 1, 0.75, "other")])
    assert value(found, "llm_d_epp_request_total", model_name="m") == 12
    assert value(found, "llm_d_epp_request_total", model_name="other") == 1
    assert value(found, RUNNING, model_name="m") == 3
    assert value(found, "llm_d_epp_seconds_bucket", le="+Inf") == 16
    assert value(found, "llm_d_epp_seconds_sum") == 7.5
    assert value(found, "llm_d_epp_full") == 0.25
    assert [type(one) for one in metrics(found)] == [Metric] * 4


def test_what_a_life_counted_stays_when_it_ends_or_is_silent() -> None:
    known = note(Counted(), {1: ("a", told(5, 2, 0.0)), 2: ("b", told(7, 1, 0.0))})
    known = note(known, {1: ("a", told(6, 2, 0.0))})
    assert value(known.lives[2][1], "llm_d_epp_request_total") == 7
    known = note(known, {2: ("c", told(1, 1, 0.0))})
    assert value(known.ended, "llm_d_epp_request_total") == 7
    known = note(known, {2: ("d", told(0, 0, 0.0))})
    assert value(known.ended, "llm_d_epp_request_total") == 8
    assert not [one for one in known.ended if one.name == RUNNING], "they run no longer"


def test_a_gauge_that_the_one_that_answers_has_not_is_that_of_another() -> None:
    """As those of discovery, which one process follows."""
    empty = families([GaugeMetricFamily("llm_d_epp_full", "Full.", labels=("pool",))])
    found = merged(empty, [told(0, 0, 0.5), told(0, 0, 0.75)])
    assert value(found, "llm_d_epp_full") == 0.5


def queue(waiting: int, priority: int = 0) -> dict[str, Any]:
    band = {
        "priority": priority,
        "ceiling": 1.0,
        "waiting": waiting,
        "bytes": 10 * waiting,
        "max_requests": 5,
        "max_bytes": None,
    }
    return {"saturation": waiting / 10, "priorities": [band]}


def test_the_status_is_that_of_all() -> None:
    log = {
        "by": "access_log",
        "in_flight_until": "x",
        "logs": 1,
        "awaited": 2,
        "silent_seconds": 3.0,
        "lost": 1,
    }
    nothing = {"by": None, "in_flight_until": None}
    own = {
        "process": 2,
        "scraped_by": 3,
        "watch": None,
        "flow_control": queue(2),
        "outcomes": nothing,
        "outliers": [],
    }
    second = {**own, "process": 1, "flow_control": queue(3), "outcomes": log, "outliers": [{"id": "w"}]}
    third = {**own, "process": 3, "watch": {"state": "ok"}, "flow_control": queue(4, -1), "outcomes": log}
    found = status_of_all(own, 2, {1: second, 3: third})
    assert found["process"] == 2
    assert found["answered"] == [1, 2, 3]
    assert found["watch"] == {"state": "ok"}, "who follows the workers says so"
    assert [
        (one["priority"], one["waiting"], one["bytes"], one["max_requests"])
        for one in found["flow_control"]["priorities"]
    ] == [
        (0, 5, 50, 10),
        (-1, 4, 40, 5),
    ]
    assert found["flow_control"]["saturation"] == 0.4
    assert found["outcomes"] == {**log, "logs": 2, "awaited": 4, "lost": 2}
    assert found["outliers"] == [{"id": "w"}]
    alone = status_of_all({"flow_control": None, "outcomes": nothing}, 1, {})
    assert alone == {"flow_control": None, "outcomes": nothing, "answered": [1]}
