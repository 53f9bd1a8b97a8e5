import math

import numpy as np
from prometheus_client import CollectorRegistry

from epp.endpoints.endpoint import NEVER, NO_ADAPTERS, Endpoint, EndpointPool
from epp.telemetry.pool_gauges import PoolGauges

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
    rows = [waiting, running, kv_usage, list(range(count)), [0] * count, scraped_at, reachable, [0] * count]
    return EndpointPool(endpoints, np.array(rows, dtype=np.float64), [NO_ADAPTERS] * count, NOW)


def gauges(pool: EndpointPool) -> dict[tuple[str, str], float]:
    """By name and endpoint; "" where the sample is the pool's."""
    registry = CollectorRegistry()
    registry.register(PoolGauges("pool", lambda: pool, lambda: 0.5, 2.0))
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
        "average_running_requests": 1.5,
        "average_kv_cache_utilization": 0.5,
        "flow_control_pool_saturation": 0.5,
    }


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
        ("per_endpoint_metrics_age_seconds", "e2"): math.inf,
    }


def test_a_pool_of_nobody() -> None:
    found = gauges(pool(age=[], waiting=[], running=[], kv_usage=[]))
    assert found == dict.fromkeys(found, 0) | {("flow_control_pool_saturation", ""): 0.5}


def test_endpoints_that_nobody_has_heard_of_lately_do_not_look_idle() -> None:
    found = gauges(pool(age=[60, math.inf], waiting=[0, 0], running=[0, 0], kv_usage=[0, 0]))
    assert found["ready_endpoints", ""] == 1
    assert math.isnan(found["average_queue_size", ""])
    assert math.isnan(found["average_running_requests", ""])
    assert math.isnan(found["average_kv_cache_utilization", ""])
