"""Plugins that look at numbers: one that is unknown, or makes no sense, is never the best."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discovery import Instance, InstanceAddedEvent
from epp.config.data_layer import ExtractorParameters
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import NEVER, NO_ADAPTERS, Column, EndpointPool, Floats, rows_of, unknown_numbers
from epp.endpoints.worker_metrics import WORKER_METRICS
from epp.request.inference_request import InferenceRequest
from epp.request.rejection import Rejection
from epp.scheduling.endpoint_attribute import (
    COMPARISONS,
    AttributeFilterParameters,
    EndpointAttributeFilter,
    EndpointAttributeScorer,
    ScoringAlgorithmParameters,
)
from epp.scheduling.filters import LOADS, UtilizationFilter
from epp.scheduling.saturation import ProbabilisticAdmitter, ProbabilisticAdmitterParameters
from epp.scraping.metrics_page import read_load
from tests.epp.scheduling.endpoint_pools import make_endpoint

CUSTOM = {"attributeKey": "Heat", "metricSpec": "heat{gpu=0}"}
ENGINE = {"name": "vllm", "queuedRequestsSpec": "vllm:num_requests_waiting", "customMetrics": [CUSTOM]}
EXTRACTOR = ExtractorParameters.model_validate({"engineConfigs": [ENGINE]})
ATTRIBUTES = EXTRACTOR.attributes()
HEAT = ATTRIBUTES["Heat"]
REQUEST = InferenceRequest("r", "/v1/completions", {})
NUMBERS = st.floats(-1e300, 1e300) | st.just(math.nan)


def make_pool(heat: list[float], *, never: set[int] = frozenset(), **columns: list[float]) -> EndpointPool:  # type: ignore[assignment]
    rows = rows_of((*WORKER_METRICS, HEAT))
    numbers: Floats = np.repeat(unknown_numbers(rows), len(heat), axis=1)
    numbers[rows[HEAT]] = heat
    numbers[Column.SCRAPED_AT] = [NEVER if at in never else 0.0 for at in range(len(heat))]
    for name, values in columns.items():
        numbers[Column[name.upper()]] = values
    endpoints = [make_endpoint(f"e{at}", 8000 + at) for at in range(len(heat))]
    return EndpointPool(endpoints, numbers, [NO_ADAPTERS] * len(heat), now=0.0, rows=rows)


@given(heat=st.lists(NUMBERS, min_size=1, max_size=20), lower=st.booleans(), fixed=st.booleans())
def test_attribute_scores_rank_by_the_number_and_unknown_last(
    heat: list[float], lower: bool, fixed: bool
) -> None:
    limits = {"fixedRange": {"min": -10.0, "max": 10.0}} if fixed else {}
    kind = "linear_lower_is_better" if lower else "linear_higher_is_better"
    algorithm = ScoringAlgorithmParameters.model_validate({"type": kind, "normalization": limits})
    scorer = EndpointAttributeScorer(HEAT, algorithm)
    scores = scorer.score(REQUEST, make_pool(heat))
    values = np.array(heat)
    unknown = np.isnan(values)
    assert ((scores >= 0) & (scores <= 1)).all()
    assert (scores[unknown] == 0).all()
    known = scores[~unknown][np.argsort(values[~unknown])]
    assert (np.diff(-known if lower else known) >= 0).all()


@pytest.mark.parametrize("comparison", COMPARISONS)
def test_a_filter_compares_no_unknown_number(comparison: str) -> None:
    for keep in (True, False):
        threshold = {"type": "threshold", "threshold": {"operator": comparison, "value": 1.0}}
        given = {"attribute": "Heat", "onMissing": "Pass" if keep else "Fail", "algorithm": threshold}
        one = EndpointAttributeFilter(HEAT, AttributeFilterParameters.model_validate(given))
        kept = one.filter(REQUEST, make_pool([math.nan, 1.0, 1.0], never={1}))
        assert kept.tolist() == [keep, keep, "Equal" in comparison and comparison != "NotEqual"]


@pytest.mark.parametrize("number", ["NaN", "+Inf", "-Inf", "1e301", "warm"])
def test_an_attribute_that_makes_no_sense_is_unknown_and_the_rest_of_the_page_counts(number: str) -> None:
    store = Datastore(metrics=(*WORKER_METRICS, HEAT))
    store.apply(InstanceAddedEvent(Instance("w", "ns", "c", "10.0.0.1", 8000, "a")), {})
    engine = EXTRACTOR.engine_configs[0].engine(ATTRIBUTES)
    for heat in ("-3.5", number):
        page = f'vllm:num_requests_waiting 4\nheat{{gpu="1"}} 9\nheat{{gpu="0"}} {heat}\n'.encode()
        store.observe(store.endpoints[0], read_load(page, engine), 1.0, period=10.0)
        pool = store.pool(1.0)
        assert (pool.waiting.tolist(), pool.age.tolist()) == ([4.0], [0.0])
        if heat == "-3.5":
            assert pool.metric(HEAT).tolist() == [-3.5]
    assert np.isnan(pool.metric(HEAT)).all()
    store.observe(store.endpoints[0], read_load(page, engine), 1.5, period=10.0)
    assert store.pool(1.5).state is pool.state, "an unknown number that stays unknown is no change"


def at_most(name: str, most: float, *, fallback: bool = False) -> UtilizationFilter:
    given = {"conditions": [{"metric": name, "maxValue": most}], "fallbackOnEmpty": fallback}
    return UtilizationFilter.model_validate(given)


@pytest.mark.parametrize("name", LOADS)
def test_an_endpoint_that_nobody_has_read_passes_only_for_want_of_a_better_one(name: str) -> None:
    loads = {"waiting": [0.0, 9.0], "running": [0.0, 9.0], "kv_usage": [0.0, 0.9], "inflight": [0.0, 9.0]}
    never_read = make_pool([0.0] * 2, never={0}, **loads)
    of_its_own = name == "active-requests"
    assert at_most(name, 0.5).filter(REQUEST, never_read).tolist() == [True, False]
    both_idle = make_pool([0.0] * 2, never={0})
    assert at_most(name, 0.5).filter(REQUEST, both_idle).tolist() == [of_its_own, True]


def test_the_fallback_is_for_want_of_anybody() -> None:
    pool = make_pool([0.0] * 2, waiting=[5.0, 6.0])
    assert not at_most("waiting-queue", 1.0).filter(REQUEST, pool).any()
    assert at_most("waiting-queue", 1.0, fallback=True).filter(REQUEST, pool).all()


@pytest.mark.parametrize(
    ("waiting", "kv_usage", "never", "expected"),
    [
        # min((mean of max(queue / 5, kv / 0.8)) ** 5 * 300, 1): probabilisticadmitter/plugin.go, computeSaturation and Admit
        ([0.0, 0.0], [0.0, 0.0], set(), 0.0),
        ([1.0, 0.0], [0.0, 0.08], set(), 0.15**5 * 300),
        ([5.0, 5.0], [0.0, 0.0], set(), 1.0),
        ([0.0, 0.0], [0.0, 0.0], {1}, 1.0),
    ],
)
def test_the_fuller_the_pool_the_more_is_refused(
    waiting: list[float], kv_usage: list[float], never: set[int], expected: float
) -> None:
    pool = make_pool([0.0] * 2, never=never, waiting=waiting, kv_usage=kv_usage)
    assert ProbabilisticAdmitter(ProbabilisticAdmitterParameters(), random.Random(1)).probability(
        pool
    ) == pytest.approx(expected)


def test_an_endpoint_without_a_page_counts_by_its_requests() -> None:
    pool = make_pool([0.0], never={0}, pageless=[1.0], inflight=[1.0])
    assert ProbabilisticAdmitter(ProbabilisticAdmitterParameters(k=1.0), random.Random(1)).probability(
        pool
    ) == pytest.approx(0.2**5)


def sheddable() -> InferenceRequest:
    request = InferenceRequest("r", "/v1/completions", {})
    request.priority = -1
    return request


def test_only_requests_of_negative_priority_are_refused() -> None:
    admitter = ProbabilisticAdmitter(ProbabilisticAdmitterParameters(power=1e6, k=1.0), random.Random(1))
    full = make_pool([0.0], waiting=[100_000.0])
    admitter.prepare(REQUEST, full)
    request = sheddable()
    with pytest.raises(Rejection) as refused:
        admitter.prepare(request, full)
    assert (refused.value.status, refused.value.reason) == (429, "rejected-saturated")
    admitter.prepare(request, make_pool([]))


def test_as_many_are_refused_as_the_probability_says() -> None:
    admitter = ProbabilisticAdmitter(ProbabilisticAdmitterParameters(power=1.0, k=0.5), random.Random(1))
    request = sheddable()
    pool, refused = make_pool([0.0], waiting=[2.5]), 0
    for _ in range(4000):
        try:
            admitter.prepare(request, pool)
        except Rejection:
            refused += 1
    assert refused == pytest.approx(1000, rel=0.15)
