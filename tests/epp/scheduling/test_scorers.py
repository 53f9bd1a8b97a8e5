"""Scorers and saturation detectors, by the Go picker's own tables of values; and cold requests, in any order of events."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.endpoints.endpoint import NEVER, NO_NUMBERS, Adapters, EndpointPool
from epp.scheduling.in_flight_load.plugins import ConcurrencyDetector, ConcurrencyParameters
from epp.scheduling.in_flight_load.producer import InFlightLoadProducer
from epp.scheduling.plugin import Scorer
from epp.scheduling.prefix.producer import PrefixCacheProducer
from epp.scheduling.saturation import UtilizationDetector
from epp.scheduling.scorers.load_scorers import (
    ActiveRequestScorer,
    KvCacheUtilizationScorer,
    LoadAwareScorer,
    LoraAffinityScorer,
    QueueScorer,
    RunningRequestsSizeScorer,
)
from epp.scheduling.scorers.no_hit_lru import NoHitLruScorer
from tests.epp.scheduling.endpoint_pools import REQUEST, make_endpoint, pool_of, unread


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
        (LoadAwareScorer(threshold=10), "waiting", [2, 0, 15], [0.4, 0.5, 0]),
        (ActiveRequestScorer(), "inflight", [3, 0, 6], [0.5, 1, 0]),
        (ActiveRequestScorer(), "inflight", [0, 0, 0], [1, 1, 1]),
        (ActiveRequestScorer(), "inflight", [4, 0, 1], [0, 1, 0.75]),
        (ActiveRequestScorer.model_construct(idle_threshold=3), "inflight", [3, 0, 6], [1, 1, 0]),
        (ActiveRequestScorer.model_construct(max_busy_score=0.5), "inflight", [3, 0, 6], [0.25, 1, 0]),
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


DETECTOR = UtilizationDetector.model_construct(
    queue_depth_threshold=5, kv_cache_util_threshold=0.9, metrics_staleness_threshold=0.1
)


def test_a_pool_without_endpoints_is_full() -> None:
    assert DETECTOR.saturation(EndpointPool([], NO_NUMBERS[:, :0], [], 0.0)) == 1.0


@pytest.mark.parametrize(
    ("waiting", "kv_usage", "ages", "expected"),
    [
        ([2], [0.5], [0], 0.5556),
        ([0], [0], [1], 1.0),
        ([10], [0.1], [0], 2.0),
        ([1], [0.95], [0], 1.0556),
        ([0], [0], [float("inf")], 1.0),
        ([1, 0], [0.1, 0.2], [0, 0], 0.2111),
        ([1, 0], [0.1, 0.1], [0, 1], 0.6),
        ([1, 15], [0.1, 0.2], [0, 0], 1.6),
        ([5], [0.1], [0], 1.0),
        ([2], [0.5], [0.1], 0.5556),
        ([100_000] + [0] * 99, [0.0] * 100, [0] * 100, 0.03),
    ],
)
def test_saturation(waiting: list[float], kv_usage: list[float], ages: list[float], expected: float) -> None:
    pool = pool_of(now=1.0, waiting=waiting, kv_usage=kv_usage, scraped_at=[1.0 - age for age in ages])
    assert DETECTOR.saturation(pool) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("waiting", "kv_usage", "scraped_at", "expected"),
    [
        ([1, 4], [0.1, 0.7], [1, 1], [True, True]),
        ([5], [0.8], [1], [True]),
        ([5], [0.9], [1], [True]),
        ([1, 7], [0.1, 0.1], [1, 1], [True, False]),
        ([1, 1], [0.5, 0.97], [1, 1], [True, False]),
        ([1, 1], [0.1, 0.1], [0, NEVER], [True, True]),
        ([1, 1], [0.1, 0.1], [1, NEVER], [True, False]),
        ([10, 1], [0.1, 0.99], [1, 1], [True, True]),
    ],
)
def test_as_a_filter(
    waiting: list[float], kv_usage: list[float], scraped_at: list[float], expected: list[bool]
) -> None:
    detector = UtilizationDetector.model_construct(
        queue_depth_threshold=5, kv_cache_util_threshold=0.8, metrics_staleness_threshold=0.2, headroom=0.2
    )
    pool = pool_of(now=1.0, waiting=waiting, kv_usage=kv_usage, scraped_at=scraped_at)
    assert detector.filter(REQUEST, pool).tolist() == expected


def test_without_a_page_the_requests_in_flight_count() -> None:
    idle = pool_of(pageless=[1.0, 1.0], scraped_at=[NEVER, NEVER], inflight=[0, 0])
    assert DETECTOR.saturation(idle) == 0.0
    busy = pool_of(pageless=[1.0, 1.0], scraped_at=[NEVER, NEVER], inflight=[5, 100])
    assert DETECTOR.saturation(busy) == 2.0, "5 waiting are full, and none counts as more than three"
    unknown = pool_of(pageless=[1.0, 0.0], scraped_at=[NEVER, NEVER], inflight=[0, 0])
    assert DETECTOR.saturation(unknown) == 0.5, "a page that is only silent is full as before"


def test_who_has_no_page_passes_the_filter_by_what_is_in_flight() -> None:
    pool = pool_of(pageless=[1.0, 1.0, 0.0], scraped_at=[NEVER, NEVER, 100.0], inflight=[4, 5, 0])
    assert DETECTOR.filter(REQUEST, pool).tolist() == [True, False, True]


SPREADS = [(0, 0, 4, 8, 3), (0, 14, 14, 14, 8), (10, 10, 10, 10, 10), (1, 13, 14, 14, 8)]


@pytest.mark.parametrize("inflight", SPREADS)
def test_a_full_pool_is_full_and_a_third_is_a_third(inflight: tuple[int, ...]) -> None:
    """The mean of the endpoints' shares is 0.9999999999999999 for 50 requests of 50 that are spread unevenly."""
    detector = ConcurrencyDetector(
        InFlightLoadProducer(), ConcurrencyParameters.model_construct(max_concurrency=10)
    )
    assert detector.saturation(pool_of(inflight=list(inflight))) == sum(inflight) / (10 * len(inflight))


COUNT = 6
ENDPOINTS = tuple(make_endpoint(f"e{at}", 8000 + at) for at in range(COUNT))
COLD = unread(ENDPOINTS)


def send(scorer: NoHitLruScorer, row: int, pool: EndpointPool = COLD) -> None:
    scorer.prepare(REQUEST, pool)
    scorer.score(REQUEST, pool)
    scorer.picked(REQUEST, [ENDPOINTS[row]])


@given(
    rows=st.lists(st.integers(0, COUNT - 1), max_size=30), some=st.sets(st.integers(0, COUNT - 1), min_size=2)
)
def test_who_waited_longest_is_first_and_who_never_got_any_before_all(
    rows: list[int], some: set[int]
) -> None:
    scorer = NoHitLruScorer(PrefixCacheProducer())
    for row in rows:
        send(scorer, row)
    last = {row: at for at, row in enumerate(rows)}
    scores = scorer.score(REQUEST, COLD)
    order = sorted(range(COUNT), key=lambda row: last.get(row, -COUNT + row))
    assert np.argsort(-scores, kind="stable").tolist() == order
    assert (scores[order[0]], scores[order[-1]]) == (1.0, 0.0)
    few = COLD.select(np.isin(np.arange(COUNT), list(some)))
    assert ((scorer.score(REQUEST, few) >= 0) & (scorer.score(REQUEST, few) <= 1)).all()


def test_who_is_gone_is_forgotten() -> None:
    scorer = NoHitLruScorer(PrefixCacheProducer())
    for row in (0, 1, 2):
        send(scorer, row)
    scorer.retain(ENDPOINTS[1:])
    assert scorer.score(REQUEST, COLD.select(np.arange(COUNT) > 0)).tolist() == [0.25, 0.0, 1.0, 0.75, 0.5]


def test_what_was_refused_counts_for_nobody() -> None:
    scorer = NoHitLruScorer(PrefixCacheProducer())
    scorer.prepare(REQUEST, COLD)
    scorer.score(REQUEST, COLD)  # the request is refused: nobody is picked
    scorer.prepare(REQUEST, COLD)  # a profile without the scorer
    scorer.picked(REQUEST, [ENDPOINTS[0]])
    assert scorer.score(REQUEST, COLD) == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.0])
