"""The default where workers have roles: the cheapest pair, or one worker, by one cost."""

import json
import random
from typing import Any

import pytest

from epp.config.picker_config import DEFAULT_CONFIG, load_config
from epp.endpoints.datastore import Datastore
from epp.endpoints.load import Load
from epp.endpoints.worker_metrics import PROMPT_TOKENS
from epp.request.rejection import Rejection
from epp.scheduling.director import Director
from epp.scheduling.disaggregation.decisions import disagg_metrics
from epp.scheduling.disaggregation.handler import NOBODY_PAIRS
from epp.scheduling.disaggregation.handler import PREFILL_HEADER as PREFILLER
from epp.scheduling.pairing import REVISION_LABEL
from epp.scheduling.pick import Pick
from epp.scheduling.request_reader import Policy
from epp.scheduling.work_ahead.producer import WorkAheadProducer
from tests.epp.scheduling import endpoint_pools
from tests.epp.scheduling.endpoint_pools import add_worker

NOW = 100.0


def store_of(
    *workers: str, running: int = 20, waiting: int = 0, revisions: str = "", gone: str = ""
) -> Datastore:
    """Workers by role, scraped just now; `running`: requests at those that decode, `waiting` at the others; `gone`: a role that is
    unreachable."""
    store = Datastore()
    for number, role in enumerate(workers, 1):
        labels = {REVISION_LABEL: revisions[number - 1]} if revisions else {}
        add_worker(store, f"{role}-{number}", role, labels=labels, is_seen=False, reachable=role != gone)
        load = Load(waiting=waiting, running=0, kv_usage=0)
        if role != "prefill":
            load = Load(waiting=0, running=running, kv_usage=0)
        store.observe(store.endpoints[-1], load, NOW, period=1e9)
    return store


def director_of(store: Datastore, config: str = DEFAULT_CONFIG) -> Director:
    return endpoint_pools.director_of(load_config(config, rng=random.Random(1)), store)


def body_of(tokens: int, text: str = "a") -> bytes:
    return json.dumps({"model": "m", "prompt": text * (4 * tokens - 2), "stream": True}).encode()


def ask(director: Director, tokens: int = 6000, text: str = "a") -> Pick:
    pick = director.direct({":path": "/v1/completions"}, body_of(tokens, text), None, NOW)
    assert isinstance(pick, Pick)
    return pick


def test_a_long_new_prompt_leaves_a_busy_decode_worker() -> None:
    store = store_of("decode", "prefill")
    pick = ask(director_of(store))
    assert (pick.endpoints[0].id, pick.headers) == ("decode-1", {PREFILLER: "10.0.0.2:8000"})
    # 6,000 and the transfer of 400 + 600; or 6,000 x (1 + 0.3 x 20)
    assert pick.stages == "prefill-decode: the prompt costs 7,000 tokens with prefill-2, 42,000 without"


@pytest.mark.parametrize(
    ("running", "tokens", "said"),
    [
        (0, 6000, "decode-only: the prompt costs 7,000 tokens with prefill-2, 6,000 without"),
        (20, 60, "decode-only: the prompt costs 466 tokens with prefill-2, 420 without"),
    ],
)
def test_what_costs_less_alone_stays(running: int, tokens: int, said: str) -> None:
    pick = ask(director_of(store_of("decode", "prefill", running=running)), tokens)
    assert (pick.endpoints[0].id, pick.headers, pick.stages) == ("decode-1", {}, said)


def test_a_prompt_that_the_decode_worker_holds_stays() -> None:
    director = director_of(store_of("decode", "prefill"))
    first = ask(director)
    assert first.headers
    director.picks.responded(first, 200, NOW)
    director.picks.release(first, NOW)
    assert ask(director).headers == {}


def test_prompts_stay_while_the_prefill_workers_have_too_much_ahead() -> None:
    director = director_of(store_of("decode", "decode", "prefill"))
    apart = [bool(ask(director, text=chr(97 + number)).headers) for number in range(12)]
    assert apart[:3] == [True] * 3
    assert not all(apart)


def test_prompts_are_shared_among_prefill_workers_by_what_each_has_ahead() -> None:
    store = store_of("decode", "prefill", "prefill")
    director = director_of(store)
    helpers = [ask(director, text=text).helpers["prefill"][0].id for text in "abcd"]
    assert sorted(helpers) == ["prefill-2", "prefill-2", "prefill-3", "prefill-3"]
    assert helpers[0] != helpers[1]


def test_what_a_prefill_worker_has_ahead_is_its_own_and_its_request_ends_when_the_answer_begins() -> None:
    store = store_of("decode", "prefill")
    director = director_of(store)
    [ahead] = [one for one in director.producers if isinstance(one, WorkAheadProducer)]
    pick = ask(director)
    assert ahead.ahead(store.pool(NOW)).tolist() == [1, 6000]
    assert store.pool(NOW).inflight.tolist() == [1, 1]
    director.picks.responded(pick, 200, NOW)
    assert store.pool(NOW).inflight.tolist() == [1, 0]
    assert ahead.ahead(store.pool(NOW)).tolist() == [1, 0]
    director.picks.release(pick, NOW)
    assert store.pool(NOW).inflight.tolist() == [0, 0]


def test_of_two_that_share_a_prefill_worker_only_one_request_ends_there() -> None:
    store = store_of("decode", "prefill")
    director = director_of(store)
    first, second = ask(director), ask(director, text="b")
    assert first.headers == second.headers != {}
    director.picks.responded(first, 200, NOW)
    director.picks.release(first, NOW)
    assert store.pool(NOW).inflight.tolist() == [1, 1]


def test_a_request_on_two_workers_teaches_nothing_of_the_one_that_answers() -> None:
    """Machines by hand: a prompt takes 0.2 ms for each token, and what was computed elsewhere ten times as long to come."""

    def learn(*, apart: bool) -> tuple[Any, float]:
        store = store_of("decode", "prefill")
        director = director_of(store)
        [work] = [one for one in director.producers if isinstance(one, WorkAheadProducer)]
        now, computed = NOW, [0.0, 0.0]
        for number in range(40):
            for tokens in [10 + number, 6000][: 1 + apart]:
                prompt = f"{number} {tokens} ".ljust(4 * tokens - 2, "a")
                body = json.dumps({"model": "m", "prompt": prompt, "stream": True}).encode()
                headers = {":path": "/v1/completions"}
                if number == 39 and tokens == 6000:
                    assert director.explain(headers, body, None, now).expected < 0.0
                pick = director.direct(headers, body, None, now)
                assert isinstance(pick, Pick)
                assert bool(pick.helpers) is (tokens == 6000), pick.stages
                took = 2e-4 * tokens * (10 if pick.helpers else 1)
                director.picks.responded(pick, 200, now + took)
                director.picks.first_byte(pick, now + took, now + took)
                director.picks.release(pick, now + took)
                computed[0] += pick.request.prompt_size / 4
                computed[1] += pick.request.prompt_size / 4 if pick.helpers else 0.0
            now += 15.0
            for row, endpoint in enumerate(store.endpoints):
                load = Load(
                    waiting=0, running=20 - 20 * row, kv_usage=0, others={PROMPT_TOKENS: computed[row]}
                )
                store.observe(endpoint, load, now)
        return work.learnt(), work.learnt_of(store.endpoints[0])["slowness"]

    alone, slowness = learn(apart=False)
    assert alone["answers"] == 40
    assert alone["used"]
    mixed, slowness_mixed = learn(apart=True)
    assert (mixed["answers"], mixed["used"]) == (40, True)
    assert mixed["seconds"]["fixed"][0] < 0.05, "a second and more is what computing elsewhere took"
    assert slowness_mixed == pytest.approx(slowness, rel=0.2)


def test_who_waits_for_prefill_stands_for_those_who_will_wait_behind_the_prompt() -> None:
    pick = ask(director_of(store_of("decode", "prefill", waiting=10)))
    assert pick.stages == "prefill-decode: the prompt costs 26,500 tokens with prefill-2, 42,000 without"


def test_two_revisions_are_not_paired() -> None:
    pick = ask(director_of(store_of("decode", "prefill", revisions="ab")))
    assert (pick.headers, pick.stages) == ({}, f"decode-only: {NOBODY_PAIRS}")
    pick = ask(director_of(store_of("decode", "decode", "prefill", revisions="bab")))
    assert [one.id for one in pick.endpoints] == ["decode-1"], "nor is a fallback"
    assert pick.headers == {PREFILLER: "10.0.0.3:8000"}


def test_each_decode_worker_is_compared_with_the_cheapest_prefill_worker_of_its_revision() -> None:
    store = store_of("decode", "decode", "prefill", "prefill", revisions="abab")
    store.observe(store.endpoints[0], Load(waiting=0, running=200, kv_usage=0), NOW, period=1e9)
    store.observe(store.endpoints[3], Load(waiting=5, running=0, kv_usage=0), NOW, period=1e9)
    pick = ask(director_of(store))
    assert (pick.endpoints[0].id, pick.helpers["prefill"][0].id) == ("decode-2", "prefill-4")
    assert pick.stages == "prefill-decode: the prompt costs 16,750 tokens with prefill-4, 42,000 without"


def test_decisions_and_fallbacks_are_counted_once_they_are_picks() -> None:
    def counted(*workers: str, tokens: int = 6000, **more: Any) -> list[tuple[str, str, float]]:
        made = load_config(DEFAULT_CONFIG, rng=random.Random(1))
        director = endpoint_pools.director_of(made, store_of(*workers, **more))
        director.explain({":path": "/v1/completions"}, body_of(tokens), None, NOW)
        ask(director, tokens)
        handler: Any = made.scheduler.handler
        samples = [one for family in disagg_metrics([handler]) for one in family.samples]
        labels = [
            one.labels.get("decision_type") or f"{one.labels['stage']} {one.labels['reason']}"
            for one in samples
        ]
        told = zip((one.name for one in samples), labels, (one.value for one in samples), strict=True)
        return [one for one in told if not one[0].startswith("llm_d_inference_scheduler")]

    decided, fell_back = "llm_d_epp_disagg_decision_total", "llm_d_epp_disagg_fallbacks_total"
    assert counted("decode", "prefill") == [(decided, "prefill-decode", 1)]
    assert counted("decode", "prefill", tokens=60) == [(decided, "decode-only", 1)]
    assert counted("decode", "prefill", gone="prefill") == [
        (decided, "decode-only", 1),
        (fell_back, "prefill no_worker", 1),
    ]
    assert counted("decode", "prefill", revisions="ab")[1] == (fell_back, "prefill other_revision", 1)
    assert counted("decode", "decode") == []


def test_who_only_computes_prompts_or_encodes_gets_no_request() -> None:
    director = director_of(store_of("decode", "prefill", "encode", "both", ""))
    picks = [ask(director, text=chr(97 + number)) for number in range(20)]
    assert {one.id for pick in picks for one in pick.endpoints} <= {"decode-1", "both-4", "-5"}
    assert {one.id for pick in picks for group in pick.helpers.values() for one in group} <= {
        "prefill-2",
        "both-4",
    }


def test_with_nobody_who_decodes_the_answer_is_503_and_with_nobody_else_they_get_all() -> None:
    with pytest.raises(Rejection) as refused:
        ask(director_of(store_of("decode", "prefill", gone="decode")))
    assert (refused.value.status, refused.value.reason) == (503, "rejected-no-endpoints")
    assert ask(director_of(store_of("prefill", "prefill"))).stages == ""


def test_without_a_prefill_worker_or_a_prompt_the_decode_worker_does_all_and_says_so() -> None:
    director = director_of(store_of("decode", "prefill", gone="prefill"))
    assert ask(director).stages == (
        "decode-only: no worker for prefill: no endpoint that may serve this request has the role for it"
    )
    pick = director_of(store_of("decode", "prefill")).direct({":path": "/v1/other"}, b"{}", None, NOW)
    assert isinstance(pick, Pick)
    assert pick.stages == "decode-only: there is no prompt"


def test_an_explanation_runs_both_stages_and_leaves_nothing_behind() -> None:
    store = store_of("decode", "prefill")
    director = director_of(store)
    for _ in range(2):
        decision = director.explain({":path": "/v1/completions"}, body_of(6000), None, NOW)
        assert decision.stages.startswith("prefill-decode: the prompt costs 7,000 tokens with prefill-2")
        assert [(run.name, run.given) for run in decision.runs] == [("prefill", 1), ("default", 1)]
    assert store.pool(NOW).inflight.tolist() == [0, 0]


@pytest.mark.parametrize("roles", [("", "", ""), ("decode", "decode", ""), ("prefill", "prefill", "prefill")])
def test_without_two_kinds_of_workers_it_is_the_only_profile(roles: tuple[str, ...]) -> None:
    def picked(config: str) -> list[Any]:
        director, rng = director_of(store_of(*roles, running=0), config), random.Random(3)
        picks = [ask(director, 500, chr(97 + rng.randrange(9))) for _ in range(40)]
        return [
            ([one.id for one in pick.endpoints], pick.primary, pick.headers, pick.stages) for pick in picks
        ]

    single = DEFAULT_CONFIG.replace("least-cost-profile-handler", "single-profile-handler")
    assert single != DEFAULT_CONFIG
    assert picked(DEFAULT_CONFIG) == picked(single)


def test_a_scheduler_with_reported_scores_has_both_stages() -> None:
    made = load_config(None, rng=random.Random(1))
    store = store_of("decode", "prefill", "decode")
    director = Director(
        store, made.scheduler.with_reported_scores(), made.detector, Policy(), random.Random(2)
    )
    pick = ask(director)
    assert pick.headers
    assert pick.scores is not None
    assert sorted(pick.scores) == ["10.0.0.1:8000", "10.0.0.3:8000"]


def test_the_name_of_the_second_stage_is_taken() -> None:
    with pytest.raises(ValueError, match="uses the name 'prefill' itself; give the profile another one"):
        load_config(DEFAULT_CONFIG.replace("name: default", "name: prefill"), rng=random.Random(1))
