"""What the plugins that decide by tokens in flight need of each other."""

from typing import Any

import pytest

from epp.scheduling.in_flight_load.plugins import ConcurrencyDetector
from epp.scheduling.in_flight_load.prefix_affinity import PrefixCacheAffinityFilter
from epp.scheduling.in_flight_load.producer import InFlightLoadProducer
from epp.scheduling.prefix.producer import PrefixCacheProducer
from tests.epp.config.test_go_plugins import plugin
from tests.epp.scheduling.endpoint_pools import config_of

DETECTOR = {"saturationDetector": {"pluginRef": "concurrency-detector"}}


def test_a_filter_brings_the_producers_that_it_needs() -> None:
    config = config_of({"type": "prefix-cache-affinity-filter"})
    assert [type(one) for one in config.scheduler.producers] == [InFlightLoadProducer, PrefixCacheProducer]
    load_of, prefixes = config.scheduler.producers
    assert isinstance(load_of, InFlightLoadProducer)
    assert load_of.matches is prefixes, "what is held already does not count"
    always = config_of(plugin("prefix-cache-affinity-filter", maxTTFTPenaltyMs=0))
    assert [type(one) for one in always.scheduler.producers] == [PrefixCacheProducer]


def test_two_profiles_share_what_is_in_flight() -> None:
    refs = [{"pluginRef": "prefix-cache-affinity-filter"}, {"pluginRef": "token-load-scorer"}]
    config = config_of(
        {"type": "prefix-cache-affinity-filter"},
        {"type": "token-load-scorer"},
        {"type": "header-profile-handler"},
        schedulingProfiles=[{"name": name, "plugins": refs} for name in "ab"],
    )
    assert [type(one) for one in config.scheduler.producers] == [InFlightLoadProducer, PrefixCacheProducer]
    one, other = (profile.filters[0] for profile in config.scheduler.profiles.values())
    assert one is other
    assert isinstance(one, PrefixCacheAffinityFilter)


def test_a_detector_alone_brings_its_producer() -> None:
    config = config_of({"type": "queue-scorer"}, plugin("concurrency-detector"), flowControl=DETECTOR)
    assert isinstance(config.detector, ConcurrencyDetector)
    assert [type(one) for one in config.scheduler.producers] == [InFlightLoadProducer]
    config = config_of({"type": "queue-scorer"}, flowControl=DETECTOR)
    assert isinstance(config.detector, ConcurrencyDetector), "by the name of its type it need not be listed"


@pytest.mark.parametrize(
    ("parameters", "warned"),
    [({}, False), ({"estimate": {}}, False), ({"modelName": "m", "vllm": {"url": "http://v:8000"}}, True)],
)
def test_a_file_that_asks_for_real_tokens_is_told_that_there_are_none(
    parameters: dict[str, Any], *, warned: bool
) -> None:
    warnings = config_of({"type": "queue-scorer"}, plugin("token-producer", **parameters)).warnings
    assert [("4 bytes of a prompt count as one token" in one) for one in warnings] == [True] * warned


def test_without_known_prefixes_whole_prompts_count() -> None:
    [alone] = config_of({"type": "token-load-scorer"}).scheduler.producers
    assert isinstance(alone, InFlightLoadProducer)
    assert alone.matches is None
    listed = config_of(
        {"type": "token-load-scorer"}, {"type": "approx-prefix-cache-producer"}
    ).scheduler.producers
    [counted] = [one for one in listed if isinstance(one, InFlightLoadProducer)]
    assert isinstance(counted.matches, PrefixCacheProducer)
    assert counted.matches in listed, "it learns of every request"
