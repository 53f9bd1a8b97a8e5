"""What the custom resources of an InferencePool mean, read from JSON as the API server stores it."""

import datetime
from typing import Any

import pytest

from discovery.kubernetes.pods.selection import POOL_GROUP
from epp.kubernetes.followed_resource import accepted_patch
from epp.kubernetes.inference_resources import (
    MAX_ALL_PARTS,
    MAX_PARTS,
    MAX_PRIORITIES,
    ParsedObjects,
    PoolIdentity,
    RewriteSpec,
    picker_reference,
    read_priorities,
    read_rewrites,
)
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


def rules(count: int) -> list[dict[str, Any]]:
    """Of three parts each."""
    return [
        {"matches": [{"model": {"value": f"m{number}"}}], "targets": [{"modelRewrite": "t"}]}
        for number in range(count // 3)
    ]


def test_a_resource_of_too_many_rules_is_left_out() -> None:
    large, small = rules(MAX_PARTS + 3), rules(3)
    read = read_rewrites(
        [resource("a", poolRef=REF, rules=large), resource("b", poolRef=REF, rules=small)], POOL
    )
    assert (read.names, len(read.rules)) == ({"b"}, 1)
    assert read.problems == {"a": "it has 1002 rules, matches and targets; expected at most 1000"}


def test_the_oldest_resources_have_their_rules_where_there_are_too_many() -> None:
    given = [
        resource(f"r{number:02}", f"2026-01-01T00:00:{59 - number:02}Z", poolRef=REF, rules=rules(MAX_PARTS))
        for number in range(12)
    ]
    read = read_rewrites(given, POOL)
    assert sorted(read.problems) == ["r00", "r01"], "the newest"
    assert len(read.rules) * 3 <= MAX_ALL_PARTS
    assert "more than 10000 rules" in read.problems["r00"]


def test_different_priorities_are_bounded() -> None:
    given = [resource(f"o{number:04}", priority=number, poolRef=REF) for number in range(MAX_PRIORITIES + 2)]
    read = read_priorities([*given, resource("z", priority=1, poolRef=REF)], POOL)
    assert len(read.by_objective) == MAX_PRIORITIES + 1
    assert sorted(read.problems) == ["o0100", "o0101"]
    assert read.by_objective["z"] == 1


class Counted(dict[str, Any]):
    """A spec that knows how often its rules were read."""

    reads = 0

    def get(self, key: str, default: Any = None) -> Any:
        Counted.reads += key == "rules"
        return super().get(key, default)


def test_only_what_changed_is_parsed_again() -> None:
    def version(number: int, *, of: str = "a") -> dict[str, Any]:
        given = resource(of, poolRef=REF, rules=[{"targets": [{"modelRewrite": f"t{number}"}]}])
        return {
            "metadata": {**given["metadata"], "uid": of, "resourceVersion": str(number)},
            "spec": Counted(given["spec"]),
        }

    parsed = ParsedObjects(RewriteSpec)
    Counted.reads = 0
    for _ in range(3):
        read_rewrites([version(1), version(7, of="b")], POOL, parsed)
    assert Counted.reads == 2
    read = read_rewrites([version(2), version(7, of="b")], POOL, parsed)
    assert Counted.reads == 3
    assert [rule.targets[0].model for rule in read.rules] == ["t2", "t7"]


@pytest.mark.parametrize(
    ("spec", "port"),
    [
        ({"endpointPickerRef": {"name": "p", "port": {"number": 9002}}}, 9002),
        ({"extensionRef": {"name": "p", "portNumber": 9003}}, 9003),
        ({"endpointPickerRef": {"name": "p"}}, None),
        ({"endpointPickerRef": {"name": "p", "port": {"number": "9002"}}}, None),
        ({"endpointPickerRef": {"name": "p", "port": {"number": 10**30}}}, None),
    ],
)
def test_the_picker_that_a_pool_refers_to(spec: dict[str, Any], port: int | None) -> None:
    found = picker_reference({"spec": spec})
    assert found is not None
    assert (found.name, found.port, found.failure_mode) == ("p", port, "FailClose")


@pytest.mark.parametrize(
    "pool", [{}, {"spec": None}, {"spec": {}}, {"spec": {"endpointPickerRef": {"name": 5}}}]
)
def test_a_pool_may_refer_to_no_picker(pool: dict[str, Any]) -> None:
    assert picker_reference(pool) is None


NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
READY = {"type": "Ready", "status": "Unknown", "reason": "Pending", "message": "Waiting for controller"}


def with_conditions(*conditions: dict[str, Any], generation: int = 2) -> dict[str, Any]:
    metadata = {"name": "a", "generation": generation, "resourceVersion": "17"}
    return {"metadata": metadata, "status": {"conditions": list(conditions)}}


def test_others_conditions_stay_and_a_change_meanwhile_makes_it_fail() -> None:
    pending = {"type": "Accepted", "status": "Unknown", "reason": "Pending"}
    change = accepted_patch(with_conditions(READY, pending), NOW)
    assert change is not None
    assert change["metadata"] == {"resourceVersion": "17"}
    [kept, accepted] = change["status"]["conditions"]
    assert kept == READY
    assert accepted == {
        "type": "Accepted",
        "status": "True",
        "reason": "Accepted",
        "message": "a picker of the InferencePool applies it",
        "observedGeneration": 2,
        "lastTransitionTime": "2026-01-02T03:04:05Z",
    }


def test_what_is_written_is_not_written_again_but_for_a_newer_generation() -> None:
    change = accepted_patch(with_conditions(), NOW)
    assert change is not None
    written = change["status"]["conditions"]
    assert accepted_patch(with_conditions(*written), NOW) is None
    assert accepted_patch(with_conditions(*written, generation=3), NOW) is not None


def test_a_status_that_is_not_there_or_makes_no_sense_is_none() -> None:
    for obj in (
        {"metadata": {"name": "a"}},
        {"metadata": {"name": "a"}, "status": {"conditions": ["x", None]}},
    ):
        change = accepted_patch(obj, NOW)
        assert change is not None
        assert len(change["status"]["conditions"]) == 1


@pytest.mark.parametrize(
    "status", ["x", ["x"], 1, {"conditions": "x"}, {"conditions": 5}, {"conditions": {"a": 1}}]
)
def test_a_status_of_another_form_is_written_anew(status: Any) -> None:
    change = accepted_patch({**with_conditions(), "status": status}, NOW)
    assert change is not None
    assert [one["type"] for one in change["status"]["conditions"]] == ["Accepted"]
