import itertools
import json
import math
import random
from collections import Counter
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from benchmarks.routing.arms import ARMS, COUNTED
from discovery import Instance, InstanceAddedEvent, InstanceRemovedEvent, InstanceUpdatedEvent
from epp.config.picker_config import load_config
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Endpoint, EndpointPool
from epp.endpoints.load import Load
from epp.request.inference_request import InferenceRequest
from epp.request.model_rewrite import ModelRewrites, RewriteRule, RewriteTarget
from epp.request.rejection import Rejection
from epp.request.subset import Subset
from epp.scheduling.cached_scores import WeightedScorer
from epp.scheduling.director import Director
from epp.scheduling.pick import Pick
from epp.scheduling.pickers import MaxScorePicker
from epp.scheduling.plugin import AdmissionController
from epp.scheduling.profile import SchedulerProfile
from epp.scheduling.profile_handlers import SingleProfileHandler
from epp.scheduling.request_reader import Policy
from epp.scheduling.scheduler import Scheduler
from tests.epp.scheduling.endpoint_pools import add_worker

NOW = 100.0
PROMPTS = itertools.count()


def store_of(*models: str, unreachable: frozenset[int] = frozenset()) -> Datastore:
    """Workers w0, w1, ... at 10.0.0.1, ..., idle and scraped just now; an empty name declares nothing."""
    store = Datastore()
    for i, model in enumerate(models):
        document = {"model": {"name": model}} if model else {}
        add_worker(store, document=document, is_seen=False, reachable=i not in unreachable)
        load(store, i)
    return store


def load(store: Datastore, i: int, waiting: float = 0, kv_usage: float = 0, now: float = NOW) -> None:
    store.observe(store.endpoints[i], Load(waiting=waiting, running=0, kv_usage=kv_usage), now)


WEIGHTS = ARMS[COUNTED].config


def director(
    store: Datastore,
    max_endpoints: int = 1,
    admission: AdmissionController | None = None,
    filters: tuple[Any, ...] = (),
    **policy: Any,
) -> Director:
    config = load_config(WEIGHTS, rng=random.Random(1))  # a prefix alone decides between idle endpoints
    profile = config.scheduler.profiles["default"]
    profile = replace(profile, max_endpoints=max_endpoints, filters=filters)
    scheduler = Scheduler({"default": profile}, SingleProfileHandler())
    return Director(store, scheduler, config.detector, Policy(**policy), random.Random(2), admission)


def direct(it: Director, model: str = "m", subset: Subset | None = None, **headers: str) -> Pick:
    sent = {":path": "/v1/completions"} | {name.replace("_", "-"): value for name, value in headers.items()}
    prompt = f"prompt {next(PROMPTS)}"  # they share no beginning: load decides
    return it.direct(sent, json.dumps({"model": model, "prompt": prompt}).encode(), subset, NOW)


def rejection(it: Director, model: str = "m", subset: Subset | None = None, **headers: str) -> Rejection:
    with pytest.raises(Rejection) as caught:
        direct(it, model, subset, **headers)
    return caught.value


def inflight(store: Datastore) -> list[float]:
    return list(store.pool(NOW).inflight.tolist())


def test_the_least_loaded_is_picked_and_counted() -> None:
    store = store_of("", "", "")
    load(store, 0, 3, 0.2)
    load(store, 1, 0, 0.1)
    load(store, 2, 10, 0.2)
    it = director(store)
    pick = direct(it)
    assert [endpoint.destination for endpoint in pick.endpoints] == ["10.0.0.2:8000"]
    assert (pick.request.model, len(pick.request.request_id)) == ("m", 32)
    assert inflight(store) == [0, 1, 0]
    it.picks.release(pick, NOW)
    it.picks.release(pick, NOW)
    assert inflight(store) == [0, 0, 0]


@pytest.mark.parametrize("kv_usage", [math.nan, math.inf, -1.0])
def test_nobody_is_sent_where_the_numbers_make_no_sense(kv_usage: float) -> None:
    store = store_of("", "", "")
    load(store, 0, 0, kv_usage)
    load(store, 1, 3, 0.7)
    load(store, 2, 3, 0.7)
    it = director(store)
    assert it.saturation(NOW) == pytest.approx((1 + 0.875 + 0.875) / 3)
    assert Counter(direct(it).endpoints[0].id for _ in range(60)) == {"w1": 30, "w2": 30}


@pytest.mark.parametrize("age", [0.0, 60.0])
def test_a_burst_on_equal_endpoints_differs_by_one_at_most(age: float) -> None:
    store = store_of(*[""] * 7)
    for i in range(7):
        load(store, i, now=NOW - age)
    it = director(store)
    for _ in range(100):
        direct(it)
        assert max(inflight(store)) - min(inflight(store)) <= 1


def test_it_is_deterministic() -> None:
    def picked() -> list[tuple[str, str]]:
        it = director(store_of("", "", ""))
        return [(pick.request.request_id, pick.endpoints[0].id) for pick in (direct(it) for _ in range(20))]

    assert picked() == picked()


def test_the_load_of_aborted_requests_ends_at_zero() -> None:
    store = store_of("", "")
    it = director(store, max_endpoints=2)
    rng = random.Random(3)
    open_picks: list[Pick] = []
    for _ in range(3000):
        open_picks.append(direct(it))
        if rng.random() < 0.5:
            it.picks.served(open_picks[-1], rng.choice(["10.0.0.1:8000", "10.0.0.2:8000"]))
        if rng.random() < 0.6:
            it.picks.release(open_picks.pop(rng.randrange(len(open_picks))), NOW)
        assert sum(inflight(store)) == len(open_picks)
    for pick in open_picks:
        it.picks.release(pick, NOW)
    assert inflight(store) == [0, 0]


def test_the_one_who_served_has_the_load() -> None:
    store = store_of("", "", "")
    load(store, 2, 5)
    load(store, 1, 1)
    it = director(store, max_endpoints=2)
    pick = direct(it)
    assert [endpoint.id for endpoint in pick.endpoints] == ["w0", "w1"]
    it.picks.served(pick, "10.0.0.9:8000")
    it.picks.served(pick, "nonsense")
    assert inflight(store) == [1, 0, 0]
    it.picks.served(pick, "10.0.0.2:8000")
    assert inflight(store) == [0, 1, 0]
    it.picks.served(pick, "10.0.0.3:8000")
    assert inflight(store) == [0, 0, 1]
    it.picks.release(pick, NOW)
    it.picks.served(pick, "10.0.0.1:8000")
    assert inflight(store) == [0, 0, 0]


def test_no_endpoint() -> None:
    found = rejection(director(store_of()))
    assert (found.status, found.reason) == (503, "rejected-no-endpoints")


def test_a_bad_request_is_bad_even_without_endpoints() -> None:
    with pytest.raises(Rejection) as caught:
        director(store_of()).direct({}, b'{"prompt":"hello world"}', None, NOW)
    assert caught.value.status == 400


def test_a_model_goes_to_those_that_serve_it() -> None:
    store = store_of("m", "other", "m", "")
    it = director(store)
    served = Counter(direct(it).endpoints[0].id for _ in range(30))
    assert served == {"w0": 10, "w2": 10, "w3": 10}


def test_a_model_that_nobody_declares() -> None:
    found = rejection(director(store_of("m", "other")), "third")
    assert (found.status, found.code) == (404, "model_not_found")
    assert direct(director(store_of("m", "")), "third").endpoints[0].id == "w1"
    assert direct(director(store_of("", "")), "third")


def test_configured_models_are_all_there_are() -> None:
    it = director(store_of(), models=frozenset({"m"}))
    assert rejection(it, "other").status == 404
    assert rejection(it, "m").status == 503


def test_a_request_that_names_no_model_goes_anywhere() -> None:
    store = store_of("m", "other")
    it = director(store, models=frozenset({"m"}))
    served = Counter(it.direct({":path": "/v1/models"}, b"", None, NOW).endpoints[0].id for _ in range(10))
    assert served == {"w0": 5, "w1": 5}
    with pytest.raises(Rejection) as caught:
        director(store_of()).direct({":path": "/v1/models"}, b"", None, NOW)
    assert caught.value.status == 503


def test_only_the_subset_is_picked_from() -> None:
    store = store_of("m", "other", "m")
    it = director(store)
    for _ in range(10):
        assert direct(it, subset=Subset.of(["10.0.0.3:8000", "10.0.0.2"])).endpoints[0].id == "w2"


@pytest.mark.parametrize("hint", [[], ["10.0.0.9:8000"], ["10.0.0.1:9"], ["10.0.0.2:8000"]])
def test_a_subset_without_an_eligible_endpoint(hint: list[str]) -> None:
    found = rejection(director(store_of("m", "other")), subset=Subset.of(hint))
    assert (found.status, found.reason) == (503, "rejected-no-endpoints")


def test_the_unreachable_are_avoided_while_others_are_left() -> None:
    it = director(store_of("", "", "", unreachable=frozenset({0, 2})), max_endpoints=3)
    assert [[endpoint.id for endpoint in direct(it).endpoints] for _ in range(3)] == [["w1"]] * 3
    it = director(store_of("", "", unreachable=frozenset({0, 1})))
    assert Counter(direct(it).endpoints[0].id for _ in range(10)) == {"w0": 5, "w1": 5}


def test_a_sheddable_request_is_shed_at_saturation() -> None:
    store = store_of("", "")
    it = director(store, objectives={"batch": -1, "premium": 2})
    assert direct(it, x_llm_d_inference_objective="batch").request.priority == -1
    for i in range(2):
        load(store, i, waiting=5)
    found = rejection(it, x_gateway_inference_objective="batch")
    assert (found.status, found.reason, found.retry_after) == (429, "rejected-saturated", 1.0)
    assert it.saturation(NOW) == 1.0
    assert direct(it, x_llm_d_inference_objective="premium").request.priority == 2
    assert direct(it, x_llm_d_inference_objective="unheard-of").request.priority == 0
    assert sum(inflight(store)) == 3


def test_saturation_is_that_of_the_candidates() -> None:
    store = store_of("m", "other")
    load(store, 0, waiting=5)
    it = director(store, objectives={"batch": -1})
    assert direct(it, "other", x_llm_d_inference_objective="batch")
    assert rejection(it, "m", x_llm_d_inference_objective="batch").status == 429


def test_passthrough_looks_into_no_body() -> None:
    pick = director(store_of("m"), passthrough=True).direct({}, b"{", None, NOW)
    assert (pick.request.model, pick.request.body_size) == ("", 1)


class Broken:
    """A plugin with a fault."""

    published_only: ClassVar[bool] = False

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Any:
        raise RuntimeError("a fault")


def test_a_plugin_s_fault_is_not_an_answer_and_reserves_nothing() -> None:
    store = store_of("")
    profile = SchedulerProfile(picker=MaxScorePicker(random.Random(1)), scorers=(WeightedScorer(Broken()),))
    it = Director(
        store,
        Scheduler({"default": profile}, SingleProfileHandler()),
        load_config(None, rng=random.Random(1)).detector,
        Policy(),
        random.Random(1),
    )
    with pytest.raises(RuntimeError, match="a fault"):
        direct(it)
    assert inflight(store) == [0]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, "default-flow"),
        ({"session_id": "b"}, "b"),
        ({"session_id": "b", "x_claude_code_session_id": " a "}, "a"),
        ({"session_id": "b", "x_llm_d_inference_fairness_id": "mine"}, "mine"),
        ({"x_claude_code_session_id": " ", "session_id": "b"}, "b"),
    ],
)
def test_an_agent_s_session_is_its_fairness_id(headers: dict[str, str], expected: str) -> None:
    names = ("x-claude-code-session-id", "session-id")
    assert direct(director(store_of(""), fairness_headers=names), **headers).request.fairness_id == expected
    if "x_llm_d_inference_fairness_id" not in headers:
        assert direct(director(store_of("")), **headers).request.fairness_id == "default-flow"


def test_picks_are_told_apart_though_they_look_alike() -> None:
    store = store_of("")
    it = director(store)
    one, other = direct(it, x_request_id="same"), direct(it, x_request_id="same")
    assert isinstance(one.endpoints[0], Endpoint)
    it.picks.release(one, NOW)
    assert inflight(store) == [1]
    it.picks.release(other, NOW)
    assert inflight(store) == [0]


LONG = "Tell me about the sea. " * 100


def ask(it: Director, prompt: str = LONG) -> Pick:
    return it.direct(
        {":path": "/v1/completions"}, json.dumps({"model": "m", "prompt": prompt}).encode(), None, NOW
    )


def cached(it: Director, prompt: str = LONG) -> Counter[str]:
    """Where the prompt goes, ten times, each refused: to the two idle workers by turns unless a cache decides."""
    picks = []
    for _ in range(10):
        picks.append(ask(it, prompt))
        it.picks.responded(picks[-1], 503, NOW)
    for pick in picks:
        it.picks.release(pick, NOW)
    return Counter(pick.endpoints[0].id for pick in picks)


def test_a_prompt_goes_where_its_beginning_was_sent() -> None:
    """Response headers of an answer that is not streamed come at its end: too late for those who ask meanwhile."""
    it = director(store_of("", ""))
    first = ask(it)
    assert {ask(it, LONG + str(number)).endpoints[0].id for number in range(3)} == {first.endpoints[0].id}
    assert set(cached(it, "Something else. " + LONG)) == {"w0", "w1"}


def test_a_prompt_goes_where_its_beginning_was_served() -> None:
    it = director(store_of("", ""))
    first = ask(it)
    it.picks.responded(first, 200, NOW)
    assert cached(it, LONG + "And the sky?") == {first.endpoints[0].id: 10}
    it.picks.responded(first, 200, NOW)
    it.picks.release(first, NOW)
    it.picks.responded(first, 500, NOW)
    assert cached(it) == {first.endpoints[0].id: 10}


@pytest.mark.parametrize("status", [None, 100, 199, 300, 404, 429, 500, 503])
def test_what_was_not_served_is_not_cached(status: int | None) -> None:
    it = director(store_of("", ""))
    pick = ask(it)
    if status is None:
        it.picks.release(pick, NOW)  # nobody answered
    else:
        it.picks.responded(pick, status, NOW)
    assert set(cached(it)) == {"w0", "w1"}


def test_of_a_request_that_failed_others_keep_what_is_theirs() -> None:
    it = director(store_of("", ""))
    proven = ask(it)
    it.picks.responded(proven, 200, NOW)
    failed, under_way = ask(it, LONG * 2), ask(it, LONG * 2)
    it.picks.responded(failed, 503, NOW)
    assert cached(it, LONG * 2) == {proven.endpoints[0].id: 10}, "another one is on its way there"
    it.picks.release(under_way, NOW)
    assert cached(it) == {proven.endpoints[0].id: 10}, "it was known before"


def test_the_one_who_served_has_the_cache() -> None:
    it = director(store_of("", ""), max_endpoints=2)
    pick = ask(it)
    it.picks.served(pick, pick.endpoints[1].destination)
    it.picks.responded(pick, 200, NOW)
    assert cached(it) == {pick.endpoints[1].id: 10}


def test_where_a_stranger_served_nobody_has_the_cache() -> None:
    it = director(store_of("", ""))
    pick = ask(it)
    it.picks.served(pick, "10.0.0.9:8000")
    it.picks.responded(pick, 200, NOW)
    assert set(cached(it)) == {"w0", "w1"}


def test_a_late_answer_of_a_worker_that_is_gone_is_no_cache() -> None:
    store = store_of("", "")
    it = director(store)
    pick = ask(it)
    instance = Instance(pick.endpoints[0].id, "ns", "c", pick.endpoints[0].address, 8000, "a")
    store.apply(InstanceRemovedEvent(instance, "deleted"))
    store.apply(InstanceAddedEvent(instance), {})
    for row in range(2):
        load(store, row)
    it.picks.responded(pick, 200, NOW)
    assert set(cached(it)) == {"w0", "w1"}


def revised(store: Datastore, name: str, revision: str) -> Instance:
    return Instance(name, "ns", "c", f"10.0.0.{int(name[1:]) + 1}", 8000, "a", revision=revision)


def test_another_process_has_no_cache() -> None:
    store = store_of("", "")
    for name in ("w0", "w1"):
        store.apply(InstanceUpdatedEvent(revised(store, name, ""), revised(store, name, "a.one.1")), {})
    it = director(store)
    pick = ask(it)
    it.picks.responded(pick, 200, NOW)
    name = pick.endpoints[0].id
    store.apply(InstanceUpdatedEvent(revised(store, name, "a.one.1"), revised(store, name, "a.one.2")), {})
    assert cached(it) == {name: 10}, "the same process with another document"
    store.apply(InstanceUpdatedEvent(revised(store, name, "a.one.2"), revised(store, name, "a.two.1")), {})
    load(store, int(name[1:]))
    assert set(cached(it)) == {"w0", "w1"}


@pytest.mark.parametrize(("reason", "kept"), [("deleted", False), ("replaced", False), ("not_ready", True)])
def test_a_worker_that_comes_back_has_its_cache_if_it_was_not_ready_only(reason: Any, kept: bool) -> None:
    store = store_of("", "")
    it = director(store)
    pick = ask(it)
    it.picks.responded(pick, 200, NOW)
    number = int(pick.endpoints[0].id[1:])
    instance = Instance(f"w{number}", "ns", "c", f"10.0.0.{number + 1}", 8000, "a")
    store.apply(InstanceRemovedEvent(instance, reason))
    store.apply(InstanceAddedEvent(instance), {})
    for row in range(2):
        load(store, row)
    assert set(cached(it)) == ({f"w{number}"} if kept else {"w0", "w1"})


def test_nothing_of_a_prompt_is_held_once_it_is_scheduled() -> None:
    it = director(store_of(""))
    pick = ask(it)
    assert pick.request.prompt is None
    assert pick.request.prefixes
    it.picks.responded(pick, 200, NOW)
    assert not pick.request.prefixes


CANARY = RewriteRule(
    "canary", "2026-01-05T00:00:00Z", ("gpt",), (RewriteTarget("llama", 3), RewriteTarget("mistral", 1))
)
HEADER = {"x_llm_d_model_name_rewrite": "mistral"}


def rewriting(*rules: RewriteRule, **policy: object) -> Director:
    return director(store_of("llama", "mistral"), rewrites=ModelRewrites(rules), **policy)


def test_the_pick_is_made_for_the_model_that_serves() -> None:
    it, went = rewriting(CANARY), Counter[tuple[str, str]]()
    for _ in range(400):
        pick = direct(it, "gpt")
        assert pick.request.rewritten_from == "gpt"
        went[pick.request.model, pick.endpoints[0].id] += 1
        it.picks.release(pick, 100.0)
    assert went.keys() == {("llama", "w0"), ("mistral", "w1")}
    assert went["mistral", "w1"] / 400 == pytest.approx(0.25, abs=0.1)


def test_the_header_asks_for_a_model_where_no_rule_does() -> None:
    pick = direct(rewriting(CANARY), "llama", **HEADER)
    assert (pick.request.model, pick.request.rewritten_from, pick.endpoints[0].id) == (
        "mistral",
        "llama",
        "w1",
    )


def test_a_target_that_is_the_model_itself_is_no_rewrite() -> None:
    itself = RewriteRule("itself", "2026-01-05T00:00:00Z", (), (RewriteTarget("llama"),))
    pick = direct(rewriting(itself), "llama")
    assert (pick.request.model, pick.request.rewritten_from) == ("llama", None)


@pytest.mark.parametrize("policy", [{}, {"models": frozenset({"llama", "mistral"})}])
def test_a_target_that_nobody_serves_is_refused_in_the_clients_words(policy: dict[str, object]) -> None:
    gone = RewriteRule("gone", "2026-01-05T00:00:00Z", ("gpt",), (RewriteTarget("secret-model"),))
    refused = rejection(rewriting(gone, **policy), "gpt")
    assert (refused.status, refused.code) == (404, "model_not_found")
    assert "'gpt'" in refused.message
    assert "secret" not in refused.message


def test_the_operators_models_are_those_that_serve() -> None:
    it = rewriting(CANARY, models=frozenset({"llama", "mistral"}))
    assert direct(it, "gpt").request.rewritten_from == "gpt"
    assert rejection(it, "other").status == 404


def test_the_body_is_not_read_where_it_may_not_be() -> None:
    pick = direct(rewriting(CANARY, passthrough=True), "gpt", **HEADER)
    assert (pick.request.model, pick.request.rewritten_from) == ("", None)
