import math
import random
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from epp.config.picker_config import load_config
from epp.endpoints.endpoint import NEVER, NO_ADAPTERS, NO_NUMBERS, Endpoint, EndpointPool
from epp.plugins.declaration import PluginDeclaration, Role
from epp.request.inference_request import parse_request
from epp.scheduling.plugin import wrapped_by
from epp.scheduling.prefix.declarations import APPROX_PREFIX_CACHE_PRODUCER
from epp.scheduling.prefix.index import PrefixIndex
from epp.scheduling.prefix.producer import PRODUCER, PrefixCacheProducer
from epp.telemetry.picker_metrics import PluginMetrics
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


NAMED = {"plugin_name": "approx-prefix-cache-producer", "plugin_type": "approx-prefix-cache-producer"}


@pytest.fixture
def producer() -> PrefixCacheProducer:
    return PrefixCacheProducer(block_tokens=64)


def page(*producers: PrefixCacheProducer) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(PluginMetrics(lambda: {PRODUCER: (APPROX_PREFIX_CACHE_PRODUCER, producers)}))
    return registry


def send(producer: PrefixCacheProducer, pick: Any, prompt: str) -> None:
    body = b'{"model": "m", "prompt": "%s"}' % prompt.encode()
    request = parse_request({":path": "/v1/completions"}, body, lambda: "1")
    producer.prepare(request, EndpointPool([], NO_NUMBERS[:, :0], [], now=0.0))
    producer.picked(request, pick.endpoints)


def test_what_a_worker_was_believed_to_hold_at_the_pick(producer: PrefixCacheProducer, picking: Any) -> None:
    pick = picking("10.0.0.1:8000")
    for prompt in ("a" * 256, "a" * 256, "a" * 512, "b" * 256):
        send(producer, pick, prompt)
    for prefix, labels in (("llm_d_epp", NAMED), ("inference_extension", {})):
        value = page(producer).get_sample_value
        name = f"{prefix}_prefix_indexer_hit"
        assert value(f"{name}_ratio_count", labels) == value(f"{name}_bytes_count", labels) == 4
        assert value(f"{name}_ratio_sum", labels) == 1 + 0.5
        assert value(f"{name}_bytes_sum", labels) == 256 + 256
        assert value(f"{prefix}_prefix_indexer_size", labels) == len(producer.index) == 3


def test_the_older_names_count_all_producers_together(producer: PrefixCacheProducer, picking: Any) -> None:
    send(producer, picking("10.0.0.1:8000"), "a" * 256)
    value = page(producer, producer).get_sample_value
    assert value("inference_extension_prefix_indexer_hit_ratio_count") == 2
    assert value("inference_extension_prefix_indexer_size") == 2
    second = NAMED | {"plugin_name": "approx-prefix-cache-producer-2"}
    assert (
        value("llm_d_epp_prefix_indexer_size", NAMED) == value("llm_d_epp_prefix_indexer_size", second) == 1
    )


def test_only_plugins_in_use_have_families() -> None:
    config = load_config("", rng=random.Random(1))
    producers = config.scheduler.producers
    used = config.plugins.by_type((*producers, *wrapped_by(producers)))
    assert PRODUCER in used
    twice = config.plugins.by_type([*producers, *wrapped_by(producers), *producers])
    assert twice == used, "a policy may follow requests, too"
    assert config.plugins.by_type([PrefixCacheProducer()]) == {}, "no plugin of that file"
    assert list(PluginMetrics(dict).collect()) == []


def test_a_plugin_whose_metrics_fail_hides_no_others(
    producer: PrefixCacheProducer, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(plugins: Any) -> list[Any]:
        raise ValueError("no number")

    broken = PluginDeclaration(role=Role.PRODUCER, build=lambda given, context: None, metrics=fails)
    shown = {"acme": (broken, [producer]), PRODUCER: (APPROX_PREFIX_CACHE_PRODUCER, [producer])}
    names = {family.name for family in PluginMetrics(lambda: shown).collect()}
    assert "llm_d_epp_prefix_indexer_size" in names
    assert "acme" in caplog.text
    assert "no number" in caplog.text


def test_its_memory_and_what_it_forgot_for_want_of_it(picking: Any) -> None:
    producer = PrefixCacheProducer(block_tokens=64, index=PrefixIndex(1100))
    for prompt in "abc":
        send(producer, picking("10.0.0.1:8000"), prompt * 256)
    value = page(producer).get_sample_value
    used = value("llm_d_epp_prefix_indexer_bytes", NAMED)
    assert used == producer.index.used_bytes
    assert 0 < used <= 1100
    assert value("llm_d_epp_prefix_indexer_limit_bytes", NAMED) == 1100
    assert value("llm_d_epp_prefix_indexer_evicted_blocks_total", NAMED) == 1
    assert value("llm_d_epp_prefix_indexer_size", NAMED) == 2
