"""Prefill, decode and encode apart: disagg-profile-handler does what the Go picker's does (go_stages.yaml), and pairs no two revisions."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from adsum.config.problems import ConfigError
from epp.config.picker_config import PickerConfig, load_config
from epp.decision_commands.decision_text import details
from epp.decisions.document import describe
from epp.endpoints.datastore import Datastore
from epp.endpoints.load import Load
from epp.request.rejection import Rejection
from epp.scheduling.director import Director
from epp.scheduling.disaggregation.decisions import disagg_metrics
from epp.scheduling.pairing import REVISION_LABEL
from epp.scheduling.pick import Pick
from tests.epp.scheduling import endpoint_pools
from tests.epp.scheduling.endpoint_pools import add_worker, director_of, picked

NOW = 100.0
CASES = yaml.load((Path(__file__).parent / "go_stages.yaml").read_text(), yaml.CSafeLoader)
CHOICES = yaml.load((Path(__file__).parent / "go_stage_choices.yaml").read_text(), yaml.CSafeLoader)
GO_FILES = Path(__file__).parents[1] / "config" / "go_files"
STAGES = ("encode", "prefill", "decode")


def config_of(case: dict[str, Any], *scheduling: dict[str, Any]) -> PickerConfig:
    """Each stage has a profile with the filter of its role and the other `scheduling` plugins."""
    handler, deciders = dict(case.get("handler", {})), []
    for stage in ("prefill", "encode"):
        if decider := dict(case.get(stage, {})):
            if not decider.pop("older", False) and case.get("type") is None:
                handler.setdefault("deciders", {})[stage] = decider["type"]
            deciders.append(decider)
    plugins: list[Any] = [
        {"type": case.get("type", "disagg-profile-handler"), "parameters": handler},
        *deciders,
    ]
    filters = [{"type": f"{stage}-filter"} for stage in STAGES]
    every = [{"pluginRef": one["type"]} for one in scheduling]
    profiles = [{"name": stage, "plugins": [{"pluginRef": f"{stage}-filter"}, *every]} for stage in STAGES]
    return endpoint_pools.config_of(*plugins, *filters, *scheduling, schedulingProfiles=profiles)


def store_of(workers: list[str], revisions: str = "") -> Datastore:
    """A worker for each role, at 10.0.0.1:8200, ..., idle and scraped just now; of a revision each, if any are given."""
    store = Datastore()
    for number, role in enumerate(workers, 1):
        labels = {REVISION_LABEL: revisions[number - 1]} if revisions else {}
        add_worker(store, f"{role}-{number}", role, port=8200, labels=labels)
    return store


def request_of(given: dict[str, Any]) -> tuple[dict[str, str], bytes]:
    if "media" in given:
        parts = [{"type": "text", "text": "What is it?"}, {"type": given["media"]}]
        body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": parts}]}
        return {":path": "/v1/chat/completions"}, json.dumps(body).encode()
    # as JSON, with its quotes
    letters = max(1, given.get("tokens", 640) * 4 - 2)
    body = {"model": "m", "prompt": given.get("text", "x") * letters}
    return {":path": "/v1/completions"}, json.dumps(body).encode()


def direct(director: Director, given: dict[str, Any]) -> Pick:
    headers, body = request_of(given)
    return picked(director.direct(headers, body, None, NOW))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_stages_are_those_of_the_go_picker(case: dict[str, Any]) -> None:
    store = store_of(case["workers"])
    director = director_of(config_of(case), store)
    addresses = {one.id: one.destination for one in store.endpoints}
    for given in case["requests"]:
        if "status" in given:
            with pytest.raises(Rejection) as refused:
                direct(director, given)
            assert refused.value.status == given["status"]
            continue
        pick = direct(director, given)
        expected = {}
        if "prefill" in given:
            expected["x-prefiller-host-port"] = addresses[given["prefill"]]
        if "encode" in given:
            expected["x-encoder-hosts-ports"] = ",".join(addresses[one] for one in given["encode"])
        if "rank" in given:
            expected["x-data-parallel-host-port"] = f"{pick.endpoints[0].address}:{given['rank']}"
        assert pick.headers == expected, given
        assert (pick.endpoints[0].id, pick.primary) == (str(given["to"]), "decode")
        assert pick.endpoints[0].port == given.get("port", 8200)
        assert pick.stages.startswith(given.get("stages", "")), pick.stages
        director.picks.responded(pick, 200, NOW)
        director.picks.release(pick, NOW)
    assert {store.inflight(one) for one in store.endpoints} == {0}


def as_the_go_picker_was_asked(given: dict[str, Any]) -> tuple[dict[str, str], bytes]:
    text = "".join(
        piece * times for piece, times in given.get("prompt", given.get("chat", [["What is it?", 1]]))
    )
    if "prompt" in given:
        return {":path": "/v1/completions"}, json.dumps({"model": "m", "prompt": text}).encode()
    content: Any = text
    if "media" in given:
        content = [
            {"type": "text", "text": text},
            {"type": given["media"], given["media"]: {"url": "http://x"}},
        ]
    body = {"model": "m", "messages": [{"role": "user", "content": content}]}
    return {":path": "/v1/chat/completions"}, json.dumps(body).encode()


@pytest.mark.parametrize(
    ("file", "case"),
    [(file, case) for case in CHOICES for file in case["files"]],
    ids=lambda value: str(value)[:60],
)
def test_the_go_pickers_configurations_choose_as_its_program_did(file: str, case: dict[str, Any]) -> None:
    store = Datastore()
    for number, (role, waiting, host) in enumerate(case["workers"], 1):
        add_worker(store, str(number), role, port=18000, labels={"kubernetes.io/hostname": host})
        store.observe(store.endpoints[-1], Load(waiting=waiting, running=0, kv_usage=0), NOW, period=1e9)
    director = director_of(load_config((GO_FILES / file).read_text(), rng=random.Random(1)), store)
    for given in case["requests"]:
        for endpoint, waiting in zip(store.endpoints, given.get("waiting", ()), strict=False):
            store.observe(endpoint, Load(waiting=waiting, running=0, kv_usage=0), NOW, period=1e9)
        pick = picked(director.direct(*as_the_go_picker_was_asked(given), None, NOW))
        expected = {"x-encoder-hosts-ports": f"10.0.0.{given['encode']}:18000"} if "encode" in given else {}
        if given.get("prefill", given["to"]) != given["to"]:
            expected["x-prefiller-host-port"] = f"10.0.0.{given['prefill']}:18000"
        if "rank" in given:
            expected["x-data-parallel-host-port"] = f"10.0.0.{given['to']}:{given['rank']}"
        assert pick.headers == expected, given
        assert pick.endpoints[0].destination == f"10.0.0.{given['to']}:{given.get('port', 18000)}", given
        director.picks.responded(pick, 200, NOW)
        director.picks.release(pick, NOW)


ALWAYS: dict[str, Any] = {"prefill": {"type": "always-disagg-pd-decider"}}


@pytest.mark.parametrize("order", ["decode-first", "prefill-first"])
def test_two_revisions_are_not_paired(order: str) -> None:
    case = ALWAYS if order == "decode-first" else {"handler": {"stageOrder": order}}
    director = director_of(config_of(case), store_of([*["prefill"] * 2, *["decode"] * 2], "abab"))
    pairs = {
        (p.endpoints[0].id, p.helpers["prefill"][0].id) for p in (direct(director, {}) for _ in range(20))
    }
    assert pairs == {("decode-3", "prefill-1"), ("decode-4", "prefill-2")}
    for revisions in ("aabb", "aac"):
        roles = ["prefill", "prefill", "decode", "decode"][: len(revisions)]
        alone = direct(director_of(config_of(case), store_of(roles, revisions)), {})
        assert alone.headers == {}
        assert alone.endpoints[0].labels["llm-d.ai/role"] == "decode"
        assert alone.stages == ("decode-only: no worker for prefill has the revision of the decode worker")


def test_no_fallback_is_of_another_revision_than_the_prefill_worker() -> None:
    picker = {"type": "max-score-picker", "parameters": {"maxNumOfEndpoints": 3}}
    config = config_of(ALWAYS, picker)
    for _ in range(5):
        pick = direct(director_of(config, store_of(["prefill", "decode", "decode", "decode"], "aaba")), {})
        revisions = [one.labels[REVISION_LABEL] for one in pick.endpoints]
        assert revisions == ["a", "a"] if pick.headers else sorted(revisions) == ["a", "a", "b"]


@pytest.mark.parametrize("order", ["decode-first", "prefill-first"])
def test_the_second_stage_is_chosen_near_the_first(order: str) -> None:
    case = ALWAYS if order == "decode-first" else {"handler": {"stageOrder": order}}
    store = Datastore()
    for role, node in (("prefill", "x"), ("prefill", "y"), ("decode", "y"), ("decode", "x")):
        add_worker(store, role=role, port=8200, is_seen=False, node=node)
    director = director_of(config_of(case, {"type": "topology-affinity-scorer"}), store)
    for _ in range(10):
        pick = direct(director, {})
        assert pick.endpoints[0].node == pick.helpers["prefill"][0].node


def test_an_explanation_tells_the_stages_and_counts_nothing() -> None:
    config = config_of(ALWAYS)
    director = director_of(config, store_of(["decode"]))
    headers, body = request_of({})
    decision = director.explain(headers, body, None, NOW)
    document = describe(decision, NOW, lambda at: at, 10)
    why = "decode-only: no worker for prefill: the filters of the scheduling profile leave no endpoint for this request"
    assert document["stages"] == why
    assert f"  {why}" in list(details(document))
    handler = config.scheduler.handler
    assert not handler.counts.decisions  # type: ignore[attr-defined]
    director.picks.release(direct(director, {}), NOW)
    samples = [one for family in disagg_metrics([handler]) for one in family.samples]  # type: ignore[list-item]
    told = [(one.name, one.labels.get("decision_type") or one.labels["reason"], one.value) for one in samples]
    assert told == [
        ("llm_d_epp_disagg_decision_total", "decode-only", 1),
        ("llm_d_inference_scheduler_disagg_decision_total", "decode-only", 1),
        ("llm_d_epp_disagg_fallbacks_total", "no_worker", 1),
    ]


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ({"handler": {"deciders": {"prefill": "nobody"}}}, "no plugin is named 'nobody'"),
        ({"handler": {"deciders": {"prefill": "decode-filter"}}}, "'decode-filter' is no decider"),
        (
            {"handler": {"stageOrder": "sideways"}},
            "'sideways' is no order of stages; expected decode-first or",
        ),
        (
            {"handler": {"stageOrder": "prefill-first"}, **ALWAYS},
            "a prefill decider is not asked where prefill",
        ),
        ({"handler": {"decodeProfile": "decode"}, **ALWAYS}, "older names cannot stand beside profiles"),
        (
            {"handler": {"profiles": {"decode": "other"}}},
            "needs a profile 'other', found encode, prefill, dec",
        ),
        (
            {"prefill": {"type": "prefix-based-pd-decider", "parameters": {"nonCachedTokens": -1}}},
            "greater than",
        ),
        ({"type": "pd-profile-handler", "handler": {"primaryPort": 65536}}, "less than or equal to 65535"),
    ],
)
def test_what_makes_no_sense_is_refused(case: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config_of(case)


@pytest.mark.parametrize("strategy", ["encoded_endpoint_header", "session_id"])
def test_a_session_stays_with_both_of_its_workers(strategy: str) -> None:
    def plugin(name: str, **parameters: Any) -> dict[str, Any]:
        return {
            "type": "session-affinity-filter",
            "name": name,
            "parameters": {"strategy": strategy, **parameters},
        }

    filters = [
        plugin("decode-session", profileName="decode"),
        plugin(
            "prefill-session",
            profileName="prefill",
            encodedEndpointHeaderConfig={"header": "x-token-prefill"},
        ),
    ]
    plugins = [
        {
            "type": "disagg-profile-handler",
            "parameters": {"deciders": {"prefill": "always-disagg-pd-decider"}},
        },
        *({"type": one} for one in ("always-disagg-pd-decider", "prefill-filter", "decode-filter")),
        *filters,
    ]
    profiles = [
        {"name": one, "plugins": [{"pluginRef": f"{one}-filter"}, {"pluginRef": f"{one}-session"}]}
        for one in ("prefill", "decode")
    ]
    config = endpoint_pools.config_of(*plugins, schedulingProfiles=profiles)
    store = store_of([*["prefill"] * 4, *["decode"] * 4])
    director = director_of(config, store)
    headers, body = request_of({})
    for session in "abcdefgh":
        sent = headers | {"x-session-id": session}
        workers = set()
        for _ in range(6):
            pick = picked(director.direct(sent, body, None, NOW))
            workers.add((pick.endpoints[0].id, pick.helpers["prefill"][0].id))
            if strategy != "session_id":
                assert config.response_headers is not None
                sent = headers | dict(config.response_headers(pick, None))
        assert len(workers) == 1
