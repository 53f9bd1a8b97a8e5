import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import ClassVar

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import event, given, settings

from epp.endpoints.endpoint import (
    DECODE_ROLES,
    NEVER,
    PREFILL_ROLES,
    ROLE_LABEL,
    Column,
    EndpointPool,
    Floats,
    Mask,
)
from epp.request.inference_request import InferenceRequest
from epp.request.rejection import Rejection
from epp.scheduling.best_endpoint import BestEndpoint
from epp.scheduling.cached_scores import TIE_BREAK, ScoreCache, WeightedScorer, add_scores, run_scorers
from epp.scheduling.filters import LabelFilter, LabelSelectorFilter, Requirement
from epp.scheduling.pick import SchedulingContext
from epp.scheduling.pickers import MaxScorePicker, RandomPicker, WeightedRandomPicker
from epp.scheduling.plugin import Filter, Scores
from epp.scheduling.profile import SchedulerProfile
from epp.scheduling.scorers.in_flight import InFlightScorer
from epp.scheduling.scorers.load_scorers import ActiveRequestScorer, KvCacheUtilizationScorer, QueueScorer
from tests.epp.scheduling.endpoint_pools import REQUEST, make_endpoint, pool_of, unread


@dataclass(frozen=True)
class Fixed:
    """A scorer, and a filter, that says what it was told to say."""

    published_only: ClassVar[bool] = False
    values: list[float]

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Floats:
        return np.array(self.values)

    def filter(self, request: InferenceRequest, pool: EndpointPool) -> Mask:
        return np.array(self.values, dtype=np.bool_)


@dataclass(frozen=True)
class KeepsNames:
    """A filter."""

    names: list[str]

    def filter(self, request: InferenceRequest, pool: EndpointPool) -> Mask:
        return np.array([endpoint.id in self.names for endpoint in pool.endpoints], dtype=np.bool_)


def profile(
    *scorers: WeightedScorer, filters: tuple[Filter, ...] = (), staleness: float | None = 2.0
) -> SchedulerProfile:
    return SchedulerProfile(
        picker=MaxScorePicker(random.Random(1)),
        scorers=scorers,
        filters=filters,
        max_endpoints=3,
        staleness=staleness,
    )


LOAD = (WeightedScorer(QueueScorer(), 2), WeightedScorer(KvCacheUtilizationScorer(), 2))


def order(it: SchedulerProfile, pool: EndpointPool) -> list[str]:
    """The names of those that it chooses, the best one first."""
    return [endpoint.id for endpoint in it.run(SchedulingContext(REQUEST), pool)]


def test_the_sum_is_weighted() -> None:
    # the first case of the Go picker's hermetic suite: (3, .2) (0, .1) (10, .2)
    pool = pool_of(waiting=[3, 0, 10], kv_usage=[0.2, 0.1, 0.2])
    assert order(profile(*LOAD), pool) == ["w1", "w0", "w2"]
    few = WeightedScorer(Fixed([0.0, 1.0, 0.5]), 1)
    many = WeightedScorer(Fixed([1.0, 0.0, 0.0]), 3)
    assert order(profile(few, many), pool) == ["w0", "w1", "w2"]


def test_scores_are_clamped_and_nan_is_0() -> None:
    wild = WeightedScorer(Fixed([100.0, float("nan"), -5.0]))
    tame = WeightedScorer(Fixed([0.0, 0.9, 0.8]))
    assert order(profile(wild, tame), pool_of(waiting=[0, 0, 0])) == ["w0", "w1", "w2"]


def test_the_scores_of_all_candidates_are_told_if_that_is_asked_for() -> None:
    pool = pool_of(waiting=[0, 5, 10], kv_usage=[0.5, 0, 0], inflight=[0, 0, 7])
    silent = profile(WeightedScorer(QueueScorer(), 2.0), WeightedScorer(KvCacheUtilizationScorer()))
    context = SchedulingContext(REQUEST)
    silent.run(context, pool)
    assert context.scores is None
    replace(silent, reports_scores=True).run(context, pool)
    assert context.scores == {"10.0.0.1:8000": 2.5, "10.0.0.2:8000": 2.0, "10.0.0.3:8000": 1.0}


def test_filters_narrow_what_scorers_compare() -> None:
    pool = pool_of(waiting=[0, 50, 100], kv_usage=[0.0, 0.3, 0.0])
    assert order(profile(*LOAD, filters=(Fixed([0, 1, 1]),)), pool) == ["w1", "w2"]


def test_filters_that_leave_nothing_are_an_absence() -> None:
    with pytest.raises(Rejection) as caught:
        order(profile(filters=(Fixed([0, 0]),)), pool_of(waiting=[0, 0]))
    assert (caught.value.status, caught.value.reason) == (503, "rejected-no-endpoints")


def test_in_flight_decides_between_equal_scores_only() -> None:
    pool = pool_of(waiting=[0, 0, 1], inflight=[3, 2, 0])
    assert order(profile(WeightedScorer(QueueScorer())), pool) == ["w1", "w0", "w2"]


def test_what_was_never_scraped_or_is_stale_comes_last() -> None:
    pool = pool_of(waiting=[90, 0, 0], kv_usage=[0.99, 0, 0], inflight=[50, 0, 1], scraped_at=[99, NEVER, 90])
    assert order(profile(*LOAD), pool) == ["w0", "w1", "w2"]


def test_stale_numbers_do_not_shift_those_of_the_fresh() -> None:
    # the queue of 1000 is stale: among 10, 5, 0 the middle one scores 0.5 and the other scorer decides
    pool = pool_of(waiting=[10, 5, 0, 1000], scraped_at=[100, 100, 100, 0])
    other = WeightedScorer(KvCacheUtilizationScorer(), 1)
    pool.numbers[Column.KV_USAGE] = [0.0, 0.2, 0.8, 0.0]
    assert order(profile(WeightedScorer(QueueScorer()), other), pool) == ["w1", "w2", "w0"]


def test_where_all_are_stale_in_flight_decides() -> None:
    pool = pool_of(waiting=[0, 90, 90], inflight=[2, 0, 1], scraped_at=[NEVER, 0, 0])
    assert order(profile(*LOAD), pool) == ["w1", "w2", "w0"]
    one = SchedulerProfile(picker=WeightedRandomPicker(random.Random(1)), scorers=LOAD, staleness=2.0)
    first = Counter(order(one, pool)[0] for _ in range(600))
    assert first["w1"] > first["w2"] > first["w0"] > 0


def test_age_says_nothing_where_nothing_scraped_is_read() -> None:
    pool = pool_of(inflight=[1, 0], scraped_at=[100, NEVER])
    assert order(profile(WeightedScorer(ActiveRequestScorer()), staleness=None), pool) == ["w1", "w0"]


@pytest.mark.parametrize("staleness", [None, 2.0])
def test_who_is_late_comes_after_all_others(staleness: float | None) -> None:
    pool = pool_of(waiting=[0, 9, 5, 7], late_at=[99.9, 100.1, 100.1, 100.1])
    assert order(profile(*LOAD, staleness=staleness), pool) == ["w2", "w3", "w1"]
    only = SchedulerProfile(picker=RandomPicker(random.Random(1)), staleness=staleness)
    assert "w0" not in {order(only, pool)[0] for _ in range(50)}
    all_of_them = replace(profile(*LOAD, staleness=staleness), max_endpoints=4)
    assert order(all_of_them, pool) == ["w2", "w3", "w1", "w0"]


def test_each_address_is_named_once() -> None:
    """A worker that came back at its address may be listed twice for a while."""
    pool = pool_of(waiting=[3, 0, 5, 1])
    first, best, last, other = pool.endpoints
    pool.endpoints = (first, best, last, replace(other, address=best.address, port=best.port))
    for late in [np.inf] * 4, [np.inf, np.inf, 99.0, np.inf]:
        pool.numbers[Column.LATE_AT] = late
        assert order(profile(*LOAD), pool) == ["w1", "w0"]


def test_where_more_than_half_are_late_that_says_nothing() -> None:
    pool = pool_of(waiting=[0, 9, 5], late_at=[99.9, 99.9, 100.1])
    assert order(profile(*LOAD), pool) == ["w0", "w2", "w1"]


def test_filters_choose_among_those_that_are_not_late_if_they_leave_any() -> None:
    pool = pool_of(waiting=[0, 9, 5, 7], late_at=[99.9, 100.1, 100.1, 100.1])
    for kept, expected in ([1, 1, 0, 0], ["w1"]), ([1, 0, 0, 0], ["w0"]):
        names = [f"w{row}" for row in range(4) if kept[row]]
        assert order(profile(*LOAD, filters=(KeepsNames(names),)), pool) == expected
    with pytest.raises(Rejection):
        order(profile(*LOAD, filters=(KeepsNames([]),)), pool)


def test_the_oldest_numbers_still_come_last() -> None:
    pool = pool_of(waiting=[90, 0, 9, 9], scraped_at=[100, NEVER, 90, 100], late_at=[101, np.inf, 92, 101])
    assert order(replace(profile(*LOAD), max_endpoints=4), pool) == ["w3", "w0", "w1", "w2"]


@dataclass
class Counted:
    """A scorer of what workers publish that counts how often it is asked."""

    published_only: ClassVar[bool] = True
    times: int = 0

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Floats:
        self.times += 1
        return 1.0 - pool.kv_usage


def at(pool: EndpointPool, now: float, state: object | None) -> EndpointPool:
    return EndpointPool(pool.endpoints, pool.numbers, pool.adapters, now, state)


def test_what_workers_publish_is_scored_once_for_each_state() -> None:
    scorer, state = Counted(), object()
    it = profile(WeightedScorer(scorer), staleness=2.0)
    pool = pool_of(kv_usage=[0.5, 0.1, 0.9])
    for inflight in range(3):
        pool.numbers[Column.INFLIGHT] = [inflight, inflight, 0]
        assert order(it, at(pool, 101.0, state)) == ["w1", "w0", "w2"]
    assert scorer.times == 1
    pool.numbers[Column.KV_USAGE] = [0.5, 0.7, 0.9]
    assert order(it, at(pool, 101.0, object())) == ["w0", "w1", "w2"]
    assert scorer.times == 2
    for _ in range(2):
        order(it, at(pool, 101.0, None))
    assert scorer.times == 4, "a pool that nobody keeps track of"


def test_numbers_that_become_stale_change_the_scores_of_a_state() -> None:
    it, state = profile(WeightedScorer(Counted()), staleness=2.0), object()
    pool = pool_of(kv_usage=[0.5, 0.1, 0.9], scraped_at=[100.0, 99.0, 100.0], inflight=[0, 7, 0])
    assert order(it, at(pool, 100.9, state)) == ["w1", "w0", "w2"]
    assert order(it, at(pool, 101.1, state)) == ["w0", "w2", "w1"]
    pool.numbers[Column.INFLIGHT] = [0, 0, 9]
    assert order(it, at(pool, 101.2, state)) == ["w0", "w2", "w1"]
    assert order(it, at(pool, 102.5, state)) == ["w0", "w1", "w2"], "all stale: by what is in flight"


def test_scorers_see_what_is_in_flight_by_now_beside_stale_endpoints() -> None:
    it, state = (
        profile(WeightedScorer(Counted()), WeightedScorer(ActiveRequestScorer()), staleness=2.0),
        object(),
    )
    pool = pool_of(scraped_at=[100, 100, 0], inflight=[4, 0, 0])
    assert order(it, at(pool, 101.0, state)) == ["w1", "w0", "w2"]
    pool.numbers[Column.INFLIGHT] = [0, 4, 0]
    assert order(it, at(pool, 101.0, state)) == ["w0", "w1", "w2"]


def test_many_states_at_once_are_not_kept_for_ever() -> None:
    scorer = Counted()
    it, pool, states = (
        profile(WeightedScorer(scorer)),
        pool_of(kv_usage=[0.5, 0.1]),
        [object() for _ in range(100)],
    )
    for state in [*states, *states[:1], *states[-1:]]:
        assert order(it, at(pool, 101.0, state)) == ["w1", "w0"]
    assert scorer.times == 101


def labelled(*roles: str | None) -> EndpointPool:
    return unread(
        [make_endpoint(str(role), labels={"llm-d.ai/role": role} if role else {}) for role in roles]
    )


def selecting(key: str, operator: str, *values: str) -> LabelSelectorFilter:
    one = Requirement.model_construct(key=key, operator=operator, values=values)
    return LabelSelectorFilter.model_construct(match_expressions=[one])


def test_filters_by_label() -> None:
    pool, key = labelled("decode", "prefill", "both", None), "llm-d.ai/role"
    both = ("both", "x")
    for one, expected in (
        (LabelFilter(ROLE_LABEL, DECODE_ROLES, unlabelled=True), [True, False, True, True]),
        (LabelFilter(ROLE_LABEL, PREFILL_ROLES), [False, True, True, False]),
        (LabelSelectorFilter(), [True, True, True, True]),
        (LabelSelectorFilter.model_construct(match_labels={key: "both"}), [False, False, True, False]),
        (selecting(key, "In", *both), [False, False, True, False]),
        (selecting(key, "NotIn", *both), [True, True, False, True]),
        (selecting(key, "Exists"), [True, True, True, False]),
        (selecting(key, "DoesNotExist"), [False, False, False, True]),
    ):
        assert one.filter(REQUEST, pool).tolist() == expected


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
