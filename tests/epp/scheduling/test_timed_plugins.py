import itertools
import random
from typing import Any

import pytest

from epp.config.picker_config import load_config
from epp.scheduling.director import Director
from epp.scheduling.policy import Policy
from epp.scheduling.timed_plugins import PluginTimes, time_plugins
from tests.epp.scheduling.test_director import NOW, direct, load, store_of

CONFIG = """
kind: EndpointPickerConfig
apiVersion: llm-d.ai/v1alpha1
plugins:
- {type: decode-filter, name: decoders}
- {type: kv-cache-utilization-scorer}
- {type: prefix-cache-scorer, name: prefixes}
- {type: in-flight-scorer}
- {type: max-score-picker}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: decoders}
  - {pluginRef: prefixes}
  - {pluginRef: in-flight-scorer}
"""
ALL = {
    ("Filter", "decode-filter", "decoders"),
    ("Scorer", "kv-cache-utilization-scorer", "kv-cache-utilization-scorer"),
    ("Scorer", "prefix-cache-scorer", "prefixes"),
    ("Scorer", "in-flight-scorer", "in-flight-scorer"),
    ("Picker", "max-score-picker", "max-score-picker"),
    ("DataProducer", "approx-prefix-cache-producer", "approx-prefix-cache-producer"),
}


def director(every: int | None) -> tuple[Any, Director, PluginTimes]:
    """Three workers; `every` None: nothing is measured."""
    config = load_config(CONFIG, rng=random.Random(1))
    ticks = itertools.count()
    times = PluginTimes(lambda: float(next(ticks)))
    if every is not None:
        time_plugins(config.scheduler, times, every)
    store = store_of("m", "m", "m")
    return store, Director(store, config.scheduler, config.detector, Policy(), random.Random(2)), times


def counts(times: PluginTimes) -> dict[tuple[str, str, str], int]:
    return {labels: seconds.buckets()[-1][1] for labels, seconds in times.current().items()}


def test_one_pick_of_some_is_measured() -> None:
    _, it, times = director(every=4)
    for _ in range(3):
        direct(it)
    assert counts(times) == dict.fromkeys(ALL, 0)
    direct(it)
    assert counts(times) == dict.fromkeys(ALL, 1)
    for _ in range(8):
        direct(it)
    assert counts(times) == {
        labels: 1 if labels[1] == "kv-cache-utilization-scorer" else 3 for labels in ALL
    }, "what reads only published numbers runs once for each state"
    assert times.of("Filter", "decode-filter", "decoders").total == 3.0, "a tick each"


@pytest.mark.parametrize("every", [1, 2, 64])
def test_measuring_changes_no_pick(every: int) -> None:
    """Each worker has another cache use: between equal scores the pick is random, and the rows come in another order."""
    picked = []
    for sampled in (None, every):
        store, it, _ = director(sampled)
        numbers = random.Random(3)
        found = []
        for number in range(200):
            if number % 20 == 0:
                for row in range(3):
                    load(store, row, waiting=numbers.randrange(4), kv_usage=numbers.random(), now=NOW)
            pick = it.direct(
                {":path": "/v1/completions"},
                b'{"model": "m", "prompt": "%s"}' % (b"%d " % (number % 7) * 200),
                None,
                NOW,
            )
            found.append(pick.endpoints[0].id)
            if numbers.random() < 0.7:
                it.release(pick, NOW)
        picked.append(found)
    assert picked[0] == picked[1]
