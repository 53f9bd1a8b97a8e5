"""The short way to the best endpoint ends where the long one does."""

import random
from dataclasses import dataclass
from typing import ClassVar

import hypothesis.strategies as st
import numpy as np
from hypothesis import event, given, settings

from epp.endpoints.endpoint import EndpointPool
from epp.request.inference_request import InferenceRequest
from epp.scheduling.best_endpoint import BestEndpoint
from epp.scheduling.cached_scores import TIE_BREAK, ScoreCache, WeightedScorer, add_scores, run_scorers
from epp.scheduling.pick import SchedulingContext
from epp.scheduling.pickers import MaxScorePicker
from epp.scheduling.plugin import Scores
from epp.scheduling.profile import SchedulerProfile
from epp.scheduling.scorers.in_flight import InFlightScorer
from epp.scheduling.scorers.load_scorers import KvCacheUtilizationScorer, QueueScorer
from tests.epp.scheduling.endpoint_pools import REQUEST, pool_of

LOAD = (WeightedScorer(QueueScorer(), 2), WeightedScorer(KvCacheUtilizationScorer(), 2))


@dataclass(frozen=True)
class ScoresSome:
    published_only: ClassVar[bool] = False
    values: dict[int, float]

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Scores:
        return self.values


@st.composite
def pools(draw: st.DrawFn) -> EndpointPool:
    size = draw(st.integers(1, 40))
    counts = st.lists(st.integers(0, 3).map(float), min_size=size, max_size=size)
    usage = st.lists(st.sampled_from([0.0, 0.5, 0.99999]) | st.floats(0, 1), min_size=size, max_size=size)
    return pool_of(
        waiting=draw(counts),
        kv_usage=draw(usage),
        running=draw(counts),
        inflight=draw(counts),
        unreported=draw(counts),
        late_at=draw(
            st.lists(st.sampled_from([99.0, 100.0, 101.0, np.inf]), min_size=size, max_size=size)
            | st.just([np.inf] * size)
        ),
    )


@settings(deadline=None)
@given(pools(), st.data())
def test_the_short_way_ends_at_one_of_the_best(pool: EndpointPool, data: st.DataObject) -> None:
    values = st.floats(-1, 2) | st.just(float("nan")) | st.sampled_from([0.0, 0.5, 1.0])
    sparse = st.dictionaries(st.integers(0, len(pool) - 1), values, max_size=8)
    weights = st.sampled_from([0.0, 1.0, 3.0])
    asked = [WeightedScorer(ScoresSome(data.draw(sparse)), data.draw(weights)) for _ in range(2)]

    in_flight = [
        WeightedScorer(InFlightScorer(requests), 2.0) for requests in data.draw(st.sampled_from([(), (2,)]))
    ]

    weighted_scores = run_scorers([*LOAD, *asked, *in_flight], REQUEST, pool)
    scores = add_scores(np.zeros(len(pool)), weighted_scores) - pool.inflight * TIE_BREAK
    picker = MaxScorePicker(random.Random(data.draw(st.integers(0, 3))))
    [chosen] = SchedulerProfile(picker=picker, scorers=[*LOAD, *in_flight, *asked]).run(
        SchedulingContext(REQUEST), pool
    )

    late = pool.late()
    if late is not None:
        scores[late] = -np.inf
    assert chosen in [pool.endpoints[row] for row in (scores == scores.max()).nonzero()[0]]
    cached = ScoreCache(LOAD, None).get(REQUEST, pool)
    best = BestEndpoint(picker, [(2.0, InFlightScorer(2)) for _ in in_flight])
    event(f"short: {best.find(cached, run_scorers(asked, REQUEST, pool), pool, late) is not None}")
    event(f"late: {late is not None}")


def test_equal_ones_have_equal_chances() -> None:
    pool = pool_of(waiting=[1, 0, 0, 5], kv_usage=[0.1, 0.1, 0.1, 0.1], inflight=[0, 7, 7, 0])
    profile = SchedulerProfile(picker=MaxScorePicker(random.Random(3)), scorers=LOAD)
    chosen = [profile.run(SchedulingContext(REQUEST), pool)[0].id for _ in range(200)]
    assert set(chosen) == {"w1", "w2"}
    assert 60 < chosen.count("w1") < 140


def test_in_flight_decides_between_leaders_only() -> None:
    pool = pool_of(waiting=[0, 0, 1], kv_usage=[0.1, 0.1, 0.1], inflight=[9, 2, 0])
    [chosen] = SchedulerProfile(picker=MaxScorePicker(random.Random(3)), scorers=LOAD).run(
        SchedulingContext(REQUEST), pool
    )
    assert chosen.id == "w1"
