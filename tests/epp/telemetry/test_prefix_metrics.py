import random
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from epp.config.picker_config import load_config
from epp.endpoints.endpoint import NO_NUMBERS, EndpointPool
from epp.plugins.declaration import PluginDeclaration, Role
from epp.request.inference_request import parse_request
from epp.scheduling.plugin import wrapped_by
from epp.scheduling.prefix.declarations import APPROX_PREFIX_CACHE_PRODUCER
from epp.scheduling.prefix.index import PrefixIndex
from epp.scheduling.prefix.producer import PRODUCER, PrefixCacheProducer
from epp.telemetry.picker_metrics import PluginMetrics

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
