"""The Go picker's own table of values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.endpoints.endpoint import Adapters, EndpointPool
from epp.scheduling.plugin import Scorer
from epp.scheduling.scorers.load_scorers import (
    ActiveRequestScorer,
    KvCacheUtilizationScorer,
    LoadAwareScorer,
    LoraAffinityScorer,
    QueueScorer,
    RunningRequestsSizeScorer,
)
from tests.epp.scheduling.endpoint_pools import REQUEST, pool_of


@pytest.mark.parametrize(
    ("scorer", "column", "values", "expected"),
    [
        (QueueScorer(), "waiting", [10, 5, 0], [0, 0.5, 1]),
        (QueueScorer(), "waiting", [5, 5], [1, 1]),
        (QueueScorer(), "waiting", [0, 0], [1, 1]),
        (QueueScorer(), "waiting", [7], [1]),
        (RunningRequestsSizeScorer(), "running", [10, 5, 0], [0, 0.5, 1]),
        (RunningRequestsSizeScorer(), "running", [0, 0], [1, 1]),
        (KvCacheUtilizationScorer(), "kv_usage", [0.8, 0.5, 0], [0.2, 0.5, 1]),
        (KvCacheUtilizationScorer(), "kv_usage", [0.6, 0.6], [0.4, 0.4]),
        (KvCacheUtilizationScorer(), "kv_usage", [1.0, 0.5], [0, 0.5]),
        (QueueScorer(), "waiting", [0, 64, 128, 100_000], [1, 0.5, 0, 0]),
        (QueueScorer(), "waiting", [72, 200, 100], [1, 0, 0.78125]),
        (RunningRequestsSizeScorer(), "running", [0, 256, 1024, 100_000], [1, 0.75, 0, 0]),
        (LoadAwareScorer(10), "waiting", [2, 0, 15], [0.4, 0.5, 0]),
        (ActiveRequestScorer(), "inflight", [3, 0, 6], [0.5, 1, 0]),
        (ActiveRequestScorer(), "inflight", [0, 0, 0], [1, 1, 1]),
        (ActiveRequestScorer(), "inflight", [4, 0, 1], [0, 1, 0.75]),
        (ActiveRequestScorer(idle_threshold=3), "inflight", [3, 0, 6], [1, 1, 0]),
        (ActiveRequestScorer(max_busy_score=0.5), "inflight", [3, 0, 6], [0.25, 1, 0]),
    ],
)
def test_values(scorer: Scorer, column: str, values: list[float], expected: list[float]) -> None:
    assert scorer.score(REQUEST, pool_of(**{column: values})) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("active", "waiting", "max_lora", "expected"),
    [
        ("m,x", "", 2, 1.0),
        ("x", "", 2, 0.8),
        ("x", "m", 3, 0.8),
        ("x", "m", 2, 0.6),
        ("x,y", "", 2, 0.0),
        ("", "", 0, 0.0),
        ("", "", 1, 0.8),
    ],
)
def test_lora_affinity(active: str, waiting: str, max_lora: float, expected: float) -> None:
    pool = pool_of(max_lora=[max_lora])
    names = [frozenset(filter(None, text.split(","))) for text in (active, waiting)]
    pool = EndpointPool(pool.endpoints, pool.numbers, [Adapters(*names)], pool.now)
    assert LoraAffinityScorer().score(REQUEST, pool).tolist() == [expected]


COUNTS = st.lists(st.integers(0, 10**6).map(float), min_size=1, max_size=20)


@given(counts=COUNTS)
def test_scores_lie_between_0_and_1_and_fewer_is_never_worse(counts: list[float]) -> None:
    pool = pool_of(waiting=counts, running=counts, inflight=counts)
    for scorer in (QueueScorer(), RunningRequestsSizeScorer(), LoadAwareScorer(), ActiveRequestScorer()):
        scores = scorer.score(REQUEST, pool)
        assert (scores >= 0).all()
        assert (scores <= 1).all()
        assert (np.diff(scores[np.argsort(counts)]) <= 0).all()
