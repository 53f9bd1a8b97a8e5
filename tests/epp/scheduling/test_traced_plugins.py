"""A pick whose trace is recorded goes where it would go otherwise. Its spans through a real Envoy: tests/epp/envoy/test_traces.py."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from epp.config.picker_config import load_config
from epp.decisions.query import DecisionQuery, DecisionReader
from epp.decisions.ring import DecisionRing
from epp.request.rejection import Rejection
from epp.scheduling.director import Director
from epp.scheduling.pick import Pick
from epp.scheduling.policy import Policy
from epp.scheduling.traced_plugins import trace_plugins
from tests.epp.decisions.test_decisions import CONFIGURATIONS
from tests.epp.scheduling.test_director import NOW, load, store_of
from tests.epp.scheduling.test_timed_plugins import CONFIG
from tests.noted_spans import Noted

HEADERS = {":path": "/v1/completions"}
STEPS = ["run_scheduler_profile", "filter_endpoints", "llm_d.epp.scoring", "pick_endpoints"]


def director(config: str | None) -> tuple[Any, Director, DecisionReader]:
    built = load_config(config, rng=random.Random(1))
    trace_plugins(built.scheduler)
    store = store_of("m", "m", "m")
    it = Director(store, built.scheduler, built.detector, Policy(), random.Random(2))
    it.decisions = ring = DecisionRing(1000)
    return store, it, DecisionReader(ring, lambda: NOW, lambda: 1.7e9)


def ask(it: Director, prompt: str, span: Noted | None = None) -> Pick:
    pick = it.direct(HEADERS, b'{"model": "m", "prompt": "%s"}' % prompt.encode(), None, NOW, span)
    assert isinstance(pick, Pick)
    return pick


@pytest.mark.parametrize("config", [CONFIG, *CONFIGURATIONS])
def test_recording_changes_no_pick_and_no_decision(config: str | None) -> None:
    """Each worker has another cache use: between equal scores the pick is random."""
    picked, decided = [], []
    for records in (False, True):
        store, it, reader = director(config)
        numbers = random.Random(3)
        found = []
        for number in range(150):
            if number % 20 == 0:
                for row in range(3):
                    load(store, row, waiting=numbers.randrange(4), kv_usage=numbers.random(), now=NOW)
            pick = ask(it, f"{number % 7} " * 200, Noted([], "parent") if records else None)
            assert pick.scores is None
            found.append(pick.endpoints[0].id)
            if numbers.random() < 0.7:
                it.release(pick, NOW)
        picked.append(found)
        decided.append(list(reader.read(DecisionQuery(limit=1000, candidates=3))))
    assert picked[0] == picked[1]
    assert [_comparable(one) for one in decided[0]] == [_comparable(one) for one in decided[1]]


def _comparable(decision: dict[str, Any]) -> Any:
    """Without ids, which are random; scores as far as float32 has them."""
    return [
        [(one["id"], one["chosen"], pytest.approx(one["total"], abs=1e-5)) for one in profile["candidates"]]
        for profile in decision["profiles"]
    ]


def test_each_step_is_a_span_that_ends() -> None:
    store, it, _ = director(CONFIG)
    load(store, 1, waiting=0, kv_usage=0.5, now=NOW)
    ask(it, "hello", Noted([], "parent"))
    spans: list[Noted] = []
    ask(it, "hello", Noted(spans, "parent"))  # other picks would use the scores of the first one now
    names = [span.name for span in spans]
    assert [name for name in names if name in STEPS] == STEPS
    assert [name for name in names if name not in STEPS] == [
        "llm_d.epp.scorer.kv-cache-utilization-scorer",
        "llm_d.epp.scorer.prefix-cache-scorer",
        "llm_d.epp.scorer.in-flight-scorer",
    ]
    assert [span.ends for span in spans] == [1] * len(spans)


@pytest.mark.parametrize("make", [lambda: KeyError("a plugin"), lambda: Rejection(429, "busy", "busy")])
def test_spans_end_where_a_plugin_raises(make: Callable[[], Exception]) -> None:
    built = load_config(CONFIG, rng=random.Random(1))
    [profile] = built.scheduler.profiles.values()

    class Faulty:
        published_only = False

        def score(self, request: Any, pool: Any) -> Any:
            raise make()

    object.__setattr__(profile.scorers[0], "scorer", Faulty())
    trace_plugins(built.scheduler)
    it = Director(store_of("m"), built.scheduler, built.detector, Policy(), random.Random(2))
    spans: list[Noted] = []
    for _ in range(2):
        with pytest.raises((KeyError, Rejection)):
            ask(it, "hello", Noted(spans, "parent"))
    assert all(span.ends == 1 for span in spans)
    assert [span.name for span in spans].count("run_scheduler_profile") == 2
