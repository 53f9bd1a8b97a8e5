"""One revision of a disaggregated deployment serves a request, as with the Go picker's disaggregatedset-rollout-screener."""

import json
import random
from collections import Counter
from typing import Any

import pytest

from adsum.config.problems import ConfigError
from discovery import Instance, InstanceRemovedEvent
from epp.config.picker_config import PickerConfig, load_config
from epp.endpoints.datastore import Datastore
from epp.request.rejection import Rejection
from epp.scheduling.director import Director
from epp.scheduling.disaggregation.rollout import DISAGGREGATEDSET_ROLLOUT_SCREENER as SCREENER
from epp.scheduling.disaggregation.rollout import RevisionShares, parse_selector
from epp.scheduling.pick import Pick
from epp.scheduling.scheduler import Scheduler
from tests.epp.scheduling.endpoint_pools import add_worker, director_of, picked

NOW = 100.0
ROLES = ["prefill", "decode"]
HEADER = "x-disagg-revision"
GATING = {"mode": "max-role", "requireRoles": {"values": ROLES}}
STRICT = {
    "name": "revision", "headerName": HEADER, "labelKey": "disaggregatedset.x-k8s.io/revision", "mode": "strict",
}  # fmt: skip


def config_of(gating: dict[str, Any], *selectors: dict[str, Any], scope: str = "app=vllm") -> PickerConfig:
    parameters = {
        "scope": {"labelSelector": scope},
        "revisionGating": gating,
        "headerSelectors": list(selectors),
    }
    document = {
        "apiVersion": "llm-d.ai/v1",
        "kind": "EndpointPickerConfig",
        "plugins": [
            {"type": SCREENER.type, "name": "rollout", "parameters": parameters},
            {"type": "disagg-profile-handler", "parameters": {"deciders": {"prefill": "always-disagg-pd-decider"}}},
            *[{"type": one} for one in ("always-disagg-pd-decider", "prefill-filter", "decode-filter")],
        ],
        "schedulingProfiles": [
            {"name": one, "plugins": [{"pluginRef": f"{one}-filter"}]} for one in ("prefill", "decode")
        ],
    }  # fmt: skip
    return load_config(json.dumps(document), rng=random.Random(1))


def store_of(counts: dict[str, dict[str, int]]) -> Datastore:
    store = Datastore()
    for revision, roles in counts.items():
        for role, count in roles.items():
            for number in range(count):
                add(store, f"{revision}-{role}-{number}", revision, role)
    return store


def add(store: Datastore, name: str, revision: str, role: str) -> None:
    labels = {
        "disaggregatedset.x-k8s.io/role": role,
        "disaggregatedset.x-k8s.io/revision": revision,
        "app": "vllm",
    }
    add_worker(store, name, role, labels=labels)


def ask(director: Director, **headers: str) -> Pick:
    sent = {":path": "/v1/completions", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return picked(director.direct(sent, b'{"model":"m","prompt":"Tell me"}', None, NOW))


# plugin_test.go, TestRevisionModesCacheExpectedShares: the revision, then its prefill and decode workers; the share of v2
@pytest.mark.parametrize(
    ("mode", "counts", "share"),
    [
        ("sum", {"v1": (2, 8), "v2": (1, 2)}, 3 / 13),
        ("max-role", {"v1": (2, 8), "v2": (1, 2)}, 2 / 10),
        ("sum", {"v1": (8, 8), "v2": (2, 2)}, 2 / 10),
        ("max-role", {"v1": (8, 8), "v2": (2, 2)}, 2 / 10),
        ("sum", {"v1": (8, 2), "v2": (2, 1)}, 3 / 13),
        ("max-role", {"v1": (8, 2), "v2": (2, 1)}, 2 / 10),
        ("max-role", {"v1": (8, 1), "v2": (2, 4)}, 2 / 10),
        ("max-role", {"v1": (2, 8), "v2": (1, 2), "v3": (100, 0)}, 2 / 10),
    ],
)
def test_revisions_get_the_shares_of_the_go_picker(
    mode: str, counts: dict[str, tuple[int, int]], share: float
) -> None:
    by_role = {one: dict(zip(ROLES, of, strict=True)) for one, of in counts.items()}
    shares = RevisionShares(mode, ROLES, by_role).shares
    assert shares == pytest.approx(
        {"v1": 1 - share, "v2": share} | dict.fromkeys(counts.keys() - {"v1", "v2"}, 0)
    )
    director = director_of(config_of(GATING | {"mode": mode}), store_of(by_role))
    picked = Counter[str]()
    for _ in range(1000):
        pick = ask(director)
        [helper] = pick.helpers["prefill"]
        revision = pick.endpoints[0].id[:2]
        assert helper.id.startswith(revision)
        picked[revision] += 1
        director.picks.release(pick, NOW)
    assert picked["v2"] / 1000 == pytest.approx(share, abs=0.05)


def test_of_equal_roles_the_first_that_is_required_counts_and_chance_chooses_in_order() -> None:
    tied = {"v1": {"prefill": 8, "decode": 2}, "v2": {"prefill": 2, "decode": 8}}
    assert RevisionShares("max-role", ROLES, tied).shares["v1"] == 0.8
    assert RevisionShares("max-role", ROLES[::-1], tied).shares["v1"] == 0.2
    shares = RevisionShares("sum", ["decode"], {"v1": {"decode": 3}, "v2": {"decode": 1}})
    assert [shares.draw({"v1", "v2"}, chance) for chance in (0.0, 0.74, 0.9, 1.0)] == ["v1", "v1", "v2", "v2"]
    assert [shares.draw({"v2"}, 0.0), shares.draw({"v3"}, 0.5)] == ["v2", ""]


def test_a_revision_that_lacks_a_role_gets_nothing_until_it_has_it() -> None:
    store = store_of({"v1": {"prefill": 1, "decode": 1}, "v2": {"decode": 9}})
    director = director_of(config_of(GATING, STRICT), store)
    assert {ask(director).endpoints[0].id for _ in range(30)} == {"v1-decode-0"}
    with pytest.raises(Rejection) as refused:
        ask(director, **{HEADER: "v2"})
    assert (refused.value.status, refused.value.message) == (
        503, "no endpoint has the disaggregatedset.x-k8s.io/revision that x-disagg-revision asks for",
    )  # fmt: skip
    add(store, "v2-prefill-0", "v2", "prefill")
    assert {ask(director).endpoints[0].id[:2] for _ in range(60)} == {"v1", "v2"}
    assert {ask(director, **{HEADER: "v2"}).helpers["prefill"][0].id for _ in range(20)} == {"v2-prefill-0"}
    gone = next(one for one in store.endpoints if one.id == "v1-prefill-0")
    store.apply(InstanceRemovedEvent(Instance(gone.id, "ns", "c", gone.address, 8000, "a"), "deleted"), {})
    assert {ask(director).endpoints[0].id[:2] for _ in range(30)} == {"v2"}


def test_nobody_is_picked_where_no_revision_is_whole_and_the_decision_says_so() -> None:
    director = director_of(config_of(GATING), store_of({"v1": {"decode": 2}}))
    with pytest.raises(Rejection) as refused:
        ask(director)
    assert refused.value.message == "no revision has ready workers of each role: prefill, decode"
    decision = director.explain({":path": "/v1/completions"}, b'{"model":"m","prompt":"a"}', None, NOW)
    assert [name for name, _ in decision.steps] == ["rollout"]


def test_workers_out_of_scope_do_not_count() -> None:
    store = store_of({"v1": {"prefill": 1, "decode": 1}})
    with pytest.raises(Rejection):
        ask(director_of(config_of(GATING, scope="app!=vllm"), store))
    ask(director_of(config_of(GATING, scope="app in (vllm, sglang),!old"), store))


def test_without_gating_only_strict_headers_count_and_answers_tell_the_label() -> None:
    config = config_of(
        {"mode": "disabled"}, STRICT, STRICT | {"name": "p", "headerName": "X-P", "mode": "prefer"}
    )
    director = director_of(config, store_of({"v1": {"decode": 1}, "v2": {"decode": 1}}))
    picks = [ask(director, **{HEADER: "v2", "x-p": "v1"}) for _ in range(10)]
    assert {one.endpoints[0].id for one in picks} == {"v2-decode-0"}
    assert config.response_headers is not None
    assert config.response_headers(picks[0], None) == {HEADER: "v2", "x-p": "v2"}
    with pytest.raises(Rejection):
        ask(director, **{HEADER: "missing"})
    [screener] = [one for one in config.scheduler.producers if getattr(one, "no_match", None)]
    samples = [one for family in SCREENER.metrics([screener]) for one in family.samples]
    assert [(one.name, one.labels, one.value) for one in samples] == [
        (
            "llm_d_epp_disaggregatedset_strict_header_no_match_total",
            {"plugin_type": SCREENER.type, "plugin_name": "rollout", "selector": "revision"},
            1,
        )
    ]


def test_the_shares_are_on_the_page_while_their_revisions_are_there() -> None:
    config = config_of(GATING)
    director = director_of(config, store_of({"v1": {"prefill": 1, "decode": 3}, "v2": {"decode": 1}}))
    ask(director)
    scheduler: Scheduler = config.scheduler
    [screener] = [one for one in scheduler.producers if hasattr(one, "screen")]
    [shares] = SCREENER.metrics([screener])
    assert shares.name == "llm_d_epp_disaggregatedset_revision_gating_share"
    assert {one.labels["revision"]: one.value for one in shares.samples} == {"v1": 1.0, "v2": 0.0}


@pytest.mark.parametrize(
    ("text", "labels", "selected"),
    [
        ("a=b", {"a": "b"}, True),
        ("a==b, c", {"a": "b", "c": ""}, True),
        ("a!=b", {}, True),
        ("a notin (b,c),d", {"a": "c", "d": "1"}, False),
        ("x.y/z-1 in ( b , c )", {"x.y/z-1": "c"}, True),
        ("! a", {"a": "b"}, False),
        ("a=", {"a": ""}, True),
    ],
)
def test_selectors_are_read_as_in_kubernetes(text: str, labels: dict[str, str], selected: bool) -> None:
    assert all(one.matches(labels) for one in parse_selector(text)) is selected


@pytest.mark.parametrize("text", ["", "a in b", "a b", "=b", "!a=b", "a=b;c", "a=" + "b" * 5000, "a in (b"])
def test_what_is_no_selector_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="label selector"):
        parse_selector(text)


# config_test.go
@pytest.mark.parametrize(
    ("gating", "selectors", "scope", "said"),
    [
        (GATING, [], "", "a label selector is empty"),
        (GATING, [], "a in", "is no label selector"),
        ({"mode": "sum"}, [], "a=b", "requireRoles is missing, which mode sum needs"),
        ({"mode": "other", "requireRoles": {"values": ROLES}}, [], "a=b", "revisionGating.mode"),
        (GATING | {"requireRoles": {"values": []}}, [], "a=b", "requireRoles.values"),
        (GATING | {"requireRoles": {"values": ["a", "a"]}}, [], "a=b", "a role is empty or listed twice"),
        (GATING, [STRICT | {"name": ""}], "a=b", "headerSelectors.0..name"),
        (GATING, [STRICT | {"mode": "maybe"}], "a=b", "headerSelectors.0..mode"),
        (GATING, [STRICT, STRICT | {"headerName": "x"}], "a=b", "two headerSelectors have the same name"),
        (GATING, [STRICT, STRICT | {"name": "x"}], "a=b", "two headerSelectors have the same header name"),
    ],
)
def test_what_makes_no_sense_is_refused(
    gating: dict[str, Any], selectors: list[dict[str, Any]], scope: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        config_of(gating, *selectors, scope=scope)
