"""What the custom resources of an InferencePool mean, read from JSON as the API server stores it."""

from typing import Any

import pytest

from discovery.kubernetes.inference_pool import POOL_GROUP
from epp.kubernetes.inference_resources import PoolIdentity, read_priorities, read_rewrites
from epp.request.model_rewrite import RewriteRule, RewriteTarget

POOL = PoolIdentity("serving", "vllm", labels={"team": "a", "tier": "gold"})
REF = {"group": POOL_GROUP, "kind": "InferencePool", "name": "vllm"}


def resource(name: str, created: str = "2026-01-01T00:00:00Z", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "creationTimestamp": created}, "spec": spec}


def test_each_objective_of_the_pool_has_its_priority() -> None:
    read = read_priorities(
        [
            resource("critical", priority=10, poolRef=REF),
            resource("batch", priority=-1, poolRef=REF),
            resource("unset", poolRef=REF),
            resource("elsewhere", priority=5, poolRef={**REF, "name": "other"}),
            resource(
                "of-another-group", priority=5, poolRef={**REF, "group": "inference.networking.x-k8s.io"}
            ),
            resource("of-no-pool", priority=5),
        ],
        POOL,
    )
    assert read.by_objective == {"critical": 10, "batch": -1, "unset": 0}
    assert read.problems == {}


def test_the_group_of_a_reference_defaults_to_that_of_the_pools() -> None:
    assert read_priorities([resource("a", priority=1, poolRef={"name": "vllm"})], POOL).by_objective == {
        "a": 1
    }


@pytest.mark.parametrize(
    ("spec", "is_ours"),
    [
        ({"poolRefs": [{**REF, "name": "other"}, REF]}, True),
        ({"poolRefs": [{**REF, "name": "other"}]}, False),
        ({"poolSelector": {"matchLabels": {"team": "a"}}}, True),
        ({"poolSelector": {"matchLabels": {"team": "a", "tier": "silver"}}}, False),
        ({"poolSelector": {"matchLabels": {}}}, False),
        ({"poolSelector": {}}, False),
    ],
)
def test_version_1_names_several_pools_or_selects_them(spec: dict[str, Any], is_ours: bool) -> None:
    read = read_priorities([resource("a", priority=3, **spec)], POOL)
    assert read.by_objective == ({"a": 3} if is_ours else {})


def test_what_is_being_deleted_counts_no_more() -> None:
    leaving = resource("a", priority=1, poolRef=REF)
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:01Z"
    assert read_priorities([leaving], POOL).by_objective == {}


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"priority": "high", "poolRef": REF}, "Expected `int | null`, got `str` - at `$.priority`"),
        ({"priority": 1.5, "poolRef": REF}, "$.priority"),
        ({"priority": 1, "poolRef": "vllm"}, "$.poolRef"),
        ({"priority": 2**31, "poolRef": REF}, "Expected `int` <= 2147483647 - at `$.priority`"),
        ({"poolSelector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}, "use matchLabels"),
    ],
)
def test_one_that_cannot_be_read_is_left_out_alone(spec: dict[str, Any], problem: str) -> None:
    read = read_priorities([resource("bad", **spec), resource("good", priority=1, poolRef=REF)], POOL)
    assert read.by_objective == {"good": 1}
    assert problem in read.problems["bad"]


def test_objects_without_a_spec_or_a_name_break_nothing() -> None:
    assert read_priorities([{}, {"metadata": None, "spec": None}], POOL).by_objective == {}
    assert read_rewrites([{}, {"metadata": None, "spec": None}], POOL).rules == []


def test_each_rule_of_a_rewrite_has_its_models_and_targets() -> None:
    rules = [
        {
            "matches": [
                {"model": {"type": "Exact", "value": "food"}},
                {"model": {"type": "Exact", "value": "meal"}},
            ],
            "targets": [{"modelRewrite": "food-v1", "weight": 90}, {"modelRewrite": "food-v2", "weight": 10}],
        },
        {"targets": [{"modelRewrite": "base"}]},
    ]
    given = resource("lora", "2026-02-03T04:05:06Z", poolRef=REF, rules=rules)
    elsewhere = resource("elsewhere", poolRef={**REF, "name": "other"}, rules=rules)
    assert read_rewrites([given, elsewhere], POOL).rules == [
        RewriteRule(
            "lora",
            "2026-02-03T04:05:06Z",
            ("food", "meal"),
            (RewriteTarget("food-v1", 90), RewriteTarget("food-v2", 10)),
        ),
        RewriteRule("lora", "2026-02-03T04:05:06Z", (), (RewriteTarget("base"),)),
    ]


def test_a_weight_that_no_arithmetic_takes_leaves_the_rule_out() -> None:
    rule = {"targets": [{"modelRewrite": "a", "weight": 10**400}, {"modelRewrite": "b", "weight": 1}]}
    read = read_rewrites([resource("a", poolRef=REF, rules=[rule])], POOL)
    assert read.rules == []
    assert "weight" in read.problems["a"]


def test_a_match_without_a_model_is_not_a_rule_for_every_model() -> None:
    rule = {"matches": [{}], "targets": [{"modelRewrite": "base"}]}
    assert read_rewrites([resource("a", poolRef=REF, rules=[rule])], POOL).rules == []
