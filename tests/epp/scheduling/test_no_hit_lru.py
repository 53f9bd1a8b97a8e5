"""Cold requests go to whoever got one longest ago, in any order of events."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.endpoints.endpoint import NO_ADAPTERS, NO_NUMBERS, Endpoint, EndpointPool
from epp.request.inference_request import InferenceRequest
from epp.scheduling.prefix.producer import PrefixCacheProducer
from epp.scheduling.scorers.no_hit_lru import NoHitLruScorer

COUNT = 6
ENDPOINTS = tuple(
    Endpoint(id=f"e{at}", incarnation="a", address="10.0.0.1", port=8000 + at, metrics_port=8000)
    for at in range(COUNT)
)
POOL = EndpointPool(ENDPOINTS, np.repeat(NO_NUMBERS, COUNT, axis=1), [NO_ADAPTERS] * COUNT, now=0.0)
REQUEST = InferenceRequest("r", "/v1/completions", {})


def send(scorer: NoHitLruScorer, row: int, pool: EndpointPool = POOL) -> None:
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
    scores = scorer.score(REQUEST, POOL)
    order = sorted(range(COUNT), key=lambda row: last.get(row, -COUNT + row))
    assert np.argsort(-scores, kind="stable").tolist() == order
    assert (scores[order[0]], scores[order[-1]]) == (1.0, 0.0)
    few = POOL.select(np.isin(np.arange(COUNT), list(some)))
    assert ((scorer.score(REQUEST, few) >= 0) & (scorer.score(REQUEST, few) <= 1)).all()


def test_who_is_gone_is_forgotten() -> None:
    scorer = NoHitLruScorer(PrefixCacheProducer())
    for row in (0, 1, 2):
        send(scorer, row)
    scorer.retain(ENDPOINTS[1:])
    assert scorer.score(REQUEST, POOL.select(np.arange(COUNT) > 0)).tolist() == [0.25, 0.0, 1.0, 0.75, 0.5]


def test_what_was_refused_counts_for_nobody() -> None:
    scorer = NoHitLruScorer(PrefixCacheProducer())
    scorer.prepare(REQUEST, POOL)
    scorer.score(REQUEST, POOL)  # the request is refused: nobody is picked
    scorer.prepare(REQUEST, POOL)  # a profile without the scorer
    scorer.picked(REQUEST, [ENDPOINTS[0]])
    assert scorer.score(REQUEST, POOL) == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.0])
