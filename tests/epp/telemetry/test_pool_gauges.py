import math

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from epp.endpoints.endpoint import NEVER, NO_ADAPTERS, Endpoint, EndpointPool
from epp.telemetry.pool_metrics import PoolGauges

NOW = 100.0


def pool(
    *, age: list[float], waiting: list[float], running: list[float], kv_usage: list[float]
) -> EndpointPool:
    """Endpoints e0, e1, ... with i requests in flight at the i-th; e1 cannot be reached."""
    count = len(age)
    endpoints = [
        Endpoint(id=f"e{row}", incarnation="1", address="10.0.0.1", port=1, metrics_port=1)
        for row in range(count)
    ]
    scraped_at = [NEVER if math.isinf(each) else NOW - each for each in age]
    reachable = [row != 1 for row in range(count)]
    none = [0] * count
    rows = [waiting, running, kv_usage, list(range(count)), none, none, scraped_at, reachable, none]
    return EndpointPool(endpoints, np.array(rows, dtype=np.float64), [NO_ADAPTERS] * count, NOW)


def gauges(pool: EndpointPool) -> dict[tuple[str, str], float]:
    """By name and endpoint; "" where the sample is the pool's."""
    registry = CollectorRegistry()
    registry.register(PoolGauges("pool", lambda: pool, lambda: {"effective": 0.5}, 2.0))
    found = {}
    for family in registry.collect():
        for sample in family.samples:
            labels = dict(sample.labels)
            assert "pool" in (labels.pop("name", None), labels.pop("inference_pool", None))
            who = labels.get("model_server_endpoint") or labels.get("model_server_pod") or ""
            found[sample.name.removeprefix("llm_d_epp_"), who] = sample.value
    return found


def test_the_averages_are_of_the_fresh_endpoints() -> None:
    found = gauges(
        pool(
            age=[0.5, 1.5, 60, math.inf], waiting=[2, 4, 99, 99], running=[1, 2, 9, 9], kv_usage=[0, 1, 0, 0]
        )
    )
    assert {name: value for (name, who), value in found.items() if not who} == {
        "ready_endpoints": 3,
        "inference_pool_ready_pods": 3,
        "average_queue_size": 3,
        "inference_pool_average_queue_size": 3,
        "std_dev_queue_size": pytest.approx(2**0.5),
        "average_running_requests": 1.5,
        "inference_pool_average_running_requests": 1.5,
        "std_dev_running_requests": pytest.approx(0.5**0.5),
        "average_kv_cache_utilization": 0.5,
        "inference_pool_average_kv_cache_utilization": 0.5,
        "std_dev_kv_cache_utilization": pytest.approx(0.5**0.5),
        "flow_control_pool_saturation": 0.5,
        "inference_extension_flow_control_pool_saturation": 0.5,
    }


def test_one_endpoint_does_not_deviate() -> None:
    found = gauges(pool(age=[0.5], waiting=[2], running=[1], kv_usage=[0.25]))
    assert found["std_dev_queue_size", ""] == found["std_dev_kv_cache_utilization", ""] == 0


def test_each_endpoint_has_its_own_series_and_says_how_old_they_are() -> None:
    found = gauges(pool(age=[0.5, 60, math.inf], waiting=[2, 4, 0], running=[1, 3, 0], kv_usage=[0.25, 1, 0]))
    assert {key: value for key, value in found.items() if key[1]} == {
        ("per_endpoint_queue_size", "e0"): 2,
        ("per_endpoint_queue_size", "e1"): 4,
        ("inference_pool_per_pod_queue_size", "e0"): 2,
        ("inference_pool_per_pod_queue_size", "e1"): 4,
        ("per_endpoint_running_requests", "e0"): 1,
        ("per_endpoint_running_requests", "e1"): 3,
        ("per_endpoint_kv_cache_utilization", "e0"): 0.25,
        ("per_endpoint_kv_cache_utilization", "e1"): 1,
        ("per_endpoint_inflight_requests", "e0"): 0,
        ("per_endpoint_inflight_requests", "e1"): 1,
        ("per_endpoint_inflight_requests", "e2"): 2,
        ("per_endpoint_metrics_age_seconds", "e0"): 0.5,
        ("per_endpoint_metrics_age_seconds", "e1"): 60,
    }


def test_a_pool_of_nobody() -> None:
    found = gauges(pool(age=[], waiting=[], running=[], kv_usage=[]))
    full = ("flow_control_pool_saturation", "inference_extension_flow_control_pool_saturation")
    assert found == dict.fromkeys(found, 0) | {(name, ""): 0.5 for name in full}
    assert ("average_queue_size", "") in found


def test_endpoints_that_nobody_has_heard_of_lately_do_not_look_idle() -> None:
    found = gauges(pool(age=[60, math.inf], waiting=[0, 0], running=[0, 0], kv_usage=[0, 0]))
    assert found["ready_endpoints", ""] == 1
    assert [name for name, _ in found if "average" in name or "std_dev" in name] == []


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0])
def test_what_makes_no_sense_is_not_on_the_page(value: float) -> None:
    pool_of_one = pool(age=[0.5], waiting=[value], running=[1], kv_usage=[0.5])
    registry = CollectorRegistry()
    registry.register(PoolGauges("pool", lambda: pool_of_one, lambda: {"effective": value}, 2.0))
    values = [sample.value for family in registry.collect() for sample in family.samples]
    assert all(0 <= each < math.inf for each in values)
    assert registry.get_sample_value("llm_d_epp_average_running_requests", {"name": "pool"}) == 1
