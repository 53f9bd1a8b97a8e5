"""What a scorer says it reads is there, and is true."""

import random
from typing import Any

import pytest

from epp.config.catalogue import PLUGINS
from epp.endpoints.endpoint import EndpointPool, Floats
from epp.extension import check_published_only
from epp.plugins.declaration import Role
from epp.request.inference_request import InferenceRequest
from epp.scheduling.cached_scores import WeightedScorer
from epp.scheduling.pickers import MaxScorePicker
from epp.scheduling.plugin import Scorer
from epp.scheduling.profile import SchedulerProfile
from epp.scheduling.published_only import UnpublishedReadError, is_published_only
from tests.epp.scheduling.endpoint_pools import config_of

PARAMETERS = {
    "header-label-affinity-scorer": {"headerName": "x-pool", "labelKey": "pool"},
    "endpoint-attribute-scorer": {
        "attributeKey": "Heat",
        "algorithm": {"type": "linear_lower_is_better"},
    },
}
HEAT = {"name": "vllm", "customMetrics": [{"attributeKey": "Heat", "metricSpec": "heat"}]}


def build(name: str) -> Scorer:
    plugins = [
        {"type": "core-metrics-extractor", "parameters": {"engineConfigs": [HEAT]}},
        {"type": name, "parameters": PARAMETERS.get(name, {})},
    ]
    [weighted] = config_of(*plugins).scheduler.profiles["default"].scorers
    return weighted.scorer


BUILT_IN = {name: build(name) for name, kind in PLUGINS.items() if Role.SCORER in kind.roles}


@pytest.mark.parametrize("name", BUILT_IN)
def test_what_a_built_in_scorer_says_of_itself_is_true(name: str) -> None:
    """One that says no for nothing is asked for each request."""
    scorer = BUILT_IN[name]
    if is_published_only(scorer):
        check_published_only(scorer)
    else:
        # a compiled function takes no stand-in for a request or a pool, and says so before it reads of it
        refused = r"which changes from request|object expected; got epp\.scheduling\.published_only"
        with pytest.raises((UnpublishedReadError, TypeError), match=refused):
            check_published_only(SaysYes(scorer))


class SaysYes:
    published_only = True

    def __init__(self, scorer: Scorer) -> None:
        self.score = scorer.score


class Reads:
    """Says that it reads only what workers publish, and reads what it was told to."""

    published_only = True

    def __init__(self, expression: str) -> None:
        self._expression = expression

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Floats:
        eval(self._expression, {"request": request, "pool": pool})
        return pool.kv_usage


@pytest.mark.parametrize(
    "read",
    [
        *(f"pool.{name}" for name in ("inflight", "sent", "now", "age", "pageless", "numbers", "state")),
        *("request.model", "request.headers", "pool.fresh(2.0)", "pool.select(pool.kv_usage < 1).inflight"),
    ],
)
def test_a_scorer_that_reads_more_than_it_says_is_found(read: str) -> None:
    with pytest.raises(UnpublishedReadError, match=r"reads (request|pool)\.\w+, which changes from request"):
        check_published_only(Reads(read))


def test_a_scorer_that_reads_what_it_says_passes() -> None:
    check_published_only(
        Reads("pool.select(pool.waiting < 10).endpoints[0].labels, pool.adapters, len(pool)")
    )


class Silent:
    """Says nothing of what it reads."""

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Floats:
        return pool.kv_usage


@pytest.mark.parametrize("said", [None, "yes", 1])
def test_a_scorer_must_say_what_it_reads(said: Any) -> None:
    scorer: Any = Silent()
    if said is not None:
        scorer.published_only = said
    with pytest.raises(ValueError, match="the scorer Silent has no published_only; expected True if"):
        SchedulerProfile(picker=MaxScorePicker(random.Random(1)), scorers=[WeightedScorer(scorer)])
