from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from epp.telemetry.sibling_pages import Counted, Family, families, merged, metrics, note

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
