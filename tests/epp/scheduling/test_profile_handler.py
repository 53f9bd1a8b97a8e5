"""What becomes of a pick with a helper, and what a profile handler may do; those of the Go picker that go by a header or by ranks."""

import json
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from epp.config.picker_config import load_config
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import DECODE_ROLES, PREFILL_ROLES, ROLE_LABEL
from epp.ext_proc.exchange_settings import ExchangeSettings
from epp.request.control_headers import DESTINATION
from epp.request.inference_request import InferenceRequest
from epp.request.rejection import Rejection
from epp.scheduling.director import Director
from epp.scheduling.disaggregation.deciders import PrefixBasedDecider
from epp.scheduling.disaggregation.handler import PREFILL_HEADER as PREFILLER
from epp.scheduling.disaggregation.handler import DisaggProfileHandler, StagePlan
from epp.scheduling.filters import LabelFilter
from epp.scheduling.pick import Pick
from epp.scheduling.plugin import PrefixMatchProducer, ProfileHandler
from epp.scheduling.prefix.scorer import PrefixMatch, prefix_match
from epp.scheduling.profile_handlers import SingleProfileHandler
from epp.scheduling.profile_result import Results
from epp.scheduling.request_reader import Policy
from epp.scheduling.scheduler import Scheduler
from epp.wire.messages.ext_proc_pb2 import HeaderMutation
from tests.decoded_exchange import DecodedExchange
from tests.epp.scheduling import endpoint_pools
from tests.epp.scheduling.endpoint_pools import add_worker, config_of, picked

NOW = 100.0
LONG = "Tell me about the sea. " * 100


def prefill_handler(producers: Sequence[Any]) -> ProfileHandler:
    """Prefill is apart for 64 tokens that the decode worker does not hold."""
    prefixes = next(one for one in producers if isinstance(one, PrefixMatchProducer))
    stages = StagePlan(prefill_decider=PrefixBasedDecider.model_validate({"nonCachedTokens": 64}))
    return DisaggProfileHandler(stages, prefixes, "disagg-profile-handler", "stages")


def scheduler_of(handler: ProfileHandler | None = None, **changes: Any) -> Scheduler:
    """The default profile twice, for decode workers and for prefill workers."""
    profile = replace(load_config(None, rng=random.Random(1)).scheduler.profiles["default"], **changes)
    decode = replace(profile, filters=(LabelFilter(ROLE_LABEL, DECODE_ROLES, unlabelled=True),))
    prefill = replace(profile, filters=(LabelFilter(ROLE_LABEL, PREFILL_ROLES),))
    return Scheduler({"decode": decode, "prefill": prefill}, handler or prefill_handler(profile.producers))


def store_of(*roles: str) -> Datastore:
    store = Datastore()
    for number, role in enumerate(roles, 1):
        add_worker(store, f"{role}-{number}", role)
    return store


def director_of(store: Datastore, scheduler: Scheduler) -> Director:
    detector = load_config(None, rng=random.Random(1)).detector
    return Director(store, scheduler, detector, Policy(), random.Random(2))


def ask(director: Director, prompt: str = LONG, **headers: str) -> Pick:
    body = json.dumps({"model": "m", "prompt": prompt}).encode()
    return director.direct({":path": "/v1/completions"} | headers, body, None, NOW)


def inflight(store: Datastore) -> dict[str, int]:
    return {endpoint.id: store.inflight(endpoint) for endpoint in store.endpoints}


def test_a_new_prompt_is_prefilled_elsewhere_and_counts_at_both() -> None:
    store = store_of("decode", "prefill")
    director = director_of(store, scheduler_of())
    pick = ask(director)
    assert [endpoint.id for endpoint in pick.endpoints] == ["decode-1"]
    assert {role: [one.id for one in group] for role, group in pick.helpers.items()} == {
        "prefill": ["prefill-2"]
    }
    assert pick.headers == {PREFILLER: "10.0.0.2:8000"}
    assert (pick.primary, inflight(store)) == ("decode", {"decode-1": 1, "prefill-2": 1})
    director.picks.responded(pick, 200, NOW)
    director.picks.release(pick, NOW)
    director.picks.release(pick, NOW)
    assert inflight(store) == {"decode-1": 0, "prefill-2": 0}


def test_a_prompt_that_the_decode_worker_holds_is_prefilled_there() -> None:
    store = store_of("decode", "prefill")
    director = director_of(store, scheduler_of())
    first = ask(director)
    director.picks.responded(first, 200, NOW)
    again = ask(director)
    assert (again.helpers, again.headers) == ({}, {})
    assert inflight(store) == {"decode-1": 2, "prefill-2": 1}
    for endpoint in store.endpoints:
        match = prefix_match(again.request, endpoint)
        assert match is not None
        assert match.held == match.prompt > 64, "both have worked on it"


def test_of_a_request_that_failed_no_helper_has_the_prompt() -> None:
    store = store_of("decode", "prefill")
    director = director_of(store, scheduler_of())
    director.picks.responded(ask(director), 503, NOW)
    second = ask(director)
    director.picks.release(second, NOW)
    assert ask(director).headers == {PREFILLER: "10.0.0.2:8000"}


def test_a_fallback_that_served_has_the_load_and_the_prompt_and_the_helper_keeps_its_own() -> None:
    store = store_of("decode", "decode", "prefill")
    director = director_of(store, scheduler_of(max_endpoints=2))
    pick = ask(director)
    chosen, fallback = pick.endpoints
    director.picks.served(pick, fallback.destination)
    assert inflight(store) == {chosen.id: 0, fallback.id: 1, "prefill-3": 1}
    director.picks.responded(pick, 200, NOW)
    later = ask(director)
    held = {
        one.id: prefix_match(later.request, one) for one in store.endpoints if one is not later.endpoints[0]
    }
    assert later.endpoints[0].id == fallback.id
    assert held[chosen.id] == PrefixMatch(0, 576)
    assert held["prefill-3"] == PrefixMatch(576, 576)
    for one in (pick, later):
        director.picks.release(one, NOW)
    assert set(inflight(store).values()) == {0}


def test_without_a_prefill_worker_the_decode_worker_does_it_all() -> None:
    store = store_of("decode")
    pick = ask(director_of(store, scheduler_of()))
    assert (pick.endpoints[0].id, pick.helpers, pick.headers) == ("decode-1", {}, {})


def test_without_a_decode_worker_there_is_no_pick() -> None:
    store = store_of("prefill")
    with pytest.raises(Rejection) as caught:
        ask(director_of(store, scheduler_of()))
    assert (caught.value.status, caught.value.reason) == (503, "rejected-no-endpoints")
    assert inflight(store) == {"prefill-1": 0}


def test_whoever_gives_up_or_is_served_elsewhere_nothing_stays_counted() -> None:
    store = store_of("decode", "decode", "prefill", "prefill", "both")
    director, rng = director_of(store, scheduler_of(max_endpoints=2)), random.Random(5)
    picks: list[Pick] = []
    for number in range(1000):
        picks.append(ask(director, f"{rng.randrange(40)} {LONG}"))
        if number % 3:
            director.picks.served(picks[-1], rng.choice(store.endpoints).destination)
        if number % 2:
            pick = picks.pop(rng.randrange(len(picks)))
            director.picks.responded(pick, rng.choice([200, 200, 503]), NOW)
            director.picks.release(pick, NOW)
    assert sum(inflight(store).values()) == sum(1 + len(pick.helpers) for pick in picks)
    for pick in picks:
        director.picks.release(pick, NOW)
    assert set(inflight(store).values()) == {0}


def test_the_scores_that_are_told_are_those_of_the_primary_profile() -> None:
    scheduler = scheduler_of().with_reported_scores()
    pick = ask(director_of(store_of("decode", "prefill", "decode"), scheduler))
    assert pick.headers
    assert pick.scores is not None
    assert sorted(pick.scores) == ["10.0.0.1:8000", "10.0.0.3:8000"]


class Only:
    """What single-profile-handler does, asked as any other handler is."""

    def __init__(self) -> None:
        self._single = SingleProfileHandler()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._single, name)


def test_one_profile_is_the_same_with_and_without_questions() -> None:
    def chosen(handler: ProfileHandler) -> list[str]:
        store = store_of("decode", "decode", "decode")
        profile = load_config(None, rng=random.Random(1)).scheduler.profiles["default"]
        director = director_of(store, Scheduler({"default": profile}, handler))
        rng = random.Random(3)
        return [ask(director, f"{rng.randrange(9)} {LONG}").endpoints[0].id for _ in range(50)]

    assert chosen(Only()) == chosen(SingleProfileHandler())


@dataclass(frozen=True)
class Wayward:
    """As somebody outside would write it; asks for `asked`, again and again."""

    asked: Sequence[str] = ()
    headers: Any = field(default_factory=dict)

    def check(self, profiles: Collection[str]) -> None:
        """Any will do."""

    def pick(self, request: InferenceRequest, profiles: Collection[str], results: Results) -> Sequence[str]:
        return self.asked

    def result(self, request: InferenceRequest, results: Results) -> Pick:
        found = results.get("decode")
        endpoints = () if found is None or isinstance(found, Rejection) else found.endpoints
        return Pick(request, endpoints, primary="decode", headers=self.headers)


def test_a_profile_runs_once_however_often_it_is_asked_for() -> None:
    store = store_of("decode", "prefill")
    pick = ask(director_of(store, scheduler_of(Wayward(asked=["decode", "decode", "prefill"]))))
    assert (pick.endpoints[0].id, inflight(store)) == ("decode-1", {"decode-1": 1, "prefill-2": 0})


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (Wayward(asked=["encode"]), "names the profile 'encode'; expected one of: decode, prefill"),
        (Wayward(asked=["prefill"]), "a pick without an endpoint; expected at least one"),
        (Wayward(asked=["decode"], headers={"x-peer": "a"}), "header 'x-peer', which clients can set too"),
        (Wayward(asked=["decode"], headers={"X-Prefiller-Host-Port": "a"}), "expected a name in lower case"),
        (Wayward(asked=["decode"], headers={DESTINATION: "a"}), "which clients can set too"),
    ],
)
def test_a_fault_of_a_handler_says_what_is_wrong_and_reserves_nothing(handler: Any, said: str) -> None:
    store = store_of("decode", "prefill")
    with pytest.raises(ValueError, match=said):
        ask(director_of(store, scheduler_of(handler)))
    assert set(inflight(store).values()) == {0}


def test_profiles_that_a_handler_cannot_work_with_are_refused() -> None:
    profiles = scheduler_of().profiles
    with pytest.raises(
        ValueError, match="single-profile-handler needs exactly one profile, found decode, prefill"
    ):
        Scheduler(profiles, SingleProfileHandler())
    with pytest.raises(ValueError, match="needs a profile 'decode', found prefill"):
        Scheduler({"prefill": profiles["prefill"]}, prefill_handler(profiles["prefill"].producers))


def mutation(exchange: DecodedExchange, messages: Any, mode: str = "FULL_DUPLEX_STREAMED") -> HeaderMutation:
    """Of the answer to a request whose client names a prefill worker itself."""
    headers = {PREFILLER: "203.0.113.1:1", "x-llm-d-peer": "203.0.113.1:1", ":path": "/v1/completions"}
    exchange.ask(messages.headers(headers, mode=mode), NOW)
    body = json.dumps({"model": "m", "prompt": LONG}).encode()
    answer = exchange.ask(messages.body(body, end_of_stream=True), NOW)[0]
    return getattr(answer, answer.WhichOneof("response")).response.header_mutation


@pytest.mark.parametrize("mode", ["FULL_DUPLEX_STREAMED", "BUFFERED"])
def test_the_worker_is_told_the_helper_and_never_what_the_client_said(messages: Any, mode: str) -> None:
    store = store_of("decode", "prefill")
    director = director_of(store, scheduler_of())
    first = DecodedExchange(director, ExchangeSettings())
    changes = mutation(first, messages, mode)
    told = {option.header.key: option.header.raw_value.decode() for option in changes.set_headers}
    assert told == {DESTINATION: "10.0.0.1:8000", PREFILLER: "10.0.0.2:8000"}
    assert changes.remove_headers == ["x-llm-d-peer"]
    first.ask(messages.response_headers("200"), NOW)
    changes = mutation(DecodedExchange(director, ExchangeSettings()), messages, mode)
    assert [option.header.key for option in changes.set_headers] == [DESTINATION], "its cache has it all"
    assert sorted(changes.remove_headers) == ["x-llm-d-peer", PREFILLER]
    first.close("done", NOW)
    assert inflight(store) == {"decode-1": 1, "prefill-2": 0}


PROFILES = ("decode", "prefill")


def make_director(handler: str, store: Datastore, profiles: tuple[str, ...], **parameters: Any) -> Director:
    plugins: list[Any] = [{"type": handler, "parameters": parameters}]
    plugins += [{"type": f"{name}-filter"} for name in PROFILES]
    listed = [
        {"name": name, "plugins": [{"pluginRef": f"{name}-filter"}] if name in PROFILES else []}
        for name in profiles
    ]
    return endpoint_pools.director_of(config_of(*plugins, schedulingProfiles=listed), store)


def make_store(*roles: str) -> Datastore:
    store = Datastore()
    for role in roles:
        add_worker(store, role=role, port=8200)
    return store


def direct(director: Director, **headers: str) -> Pick:
    sent = {":path": "/v1/completions"} | {name.replace("_", "-"): text for name, text in headers.items()}
    return picked(director.direct(sent, b'{"model": "m", "prompt": "x"}', None, NOW))


@pytest.mark.parametrize(
    ("headers", "expected"),
    [({}, "decode"), ({"epp_profile": " prefill "}, "prefill"), ({"epp_profile": ""}, "decode")],
)
def test_a_header_names_the_profile(headers: dict[str, str], expected: str) -> None:
    director = make_director("header-profile-handler", make_store("decode", "prefill"), PROFILES)
    pick = direct(director, **headers)
    assert (pick.primary, pick.endpoints[0].labels["llm-d.ai/role"]) == (expected, expected)


def test_its_header_and_its_default_are_parameters() -> None:
    store = make_store("decode", "prefill")
    director = make_director(
        "header-profile-handler", store, PROFILES, headerName=" X-Stage ", defaultProfile="prefill"
    )
    assert direct(director).primary == "prefill"
    assert direct(director, x_stage="decode", epp_profile="prefill").primary == "decode"


def test_an_only_profile_needs_no_header() -> None:
    director = make_director("header-profile-handler", make_store(""), ("only",))
    assert direct(director, epp_profile="other").primary == "only"


def test_a_name_that_is_no_profile_is_the_client_s_mistake() -> None:
    store = make_store("decode", "prefill")
    director = make_director("header-profile-handler", store, PROFILES, defaultProfile="nobody")
    with pytest.raises(
        Rejection, match="the header epp-profile names 'encode'; expected the name of a"
    ) as refused:
        direct(director, epp_profile="encode")
    assert refused.value.status == 400
    with pytest.raises(Rejection, match="there is no header epp-profile; expected"):
        direct(director)


def test_what_a_profile_refuses_is_refused() -> None:
    director = make_director("header-profile-handler", make_store("decode"), PROFILES)
    with pytest.raises(Rejection) as refused:
        direct(director, epp_profile="prefill")
    assert refused.value.status == 503


def test_a_rank_counts_as_in_flight_though_the_request_goes_to_its_sidecar() -> None:
    store = make_store("")
    director = make_director("data-parallel-profile-handler", store, ("default",))
    pick = direct(director)
    assert pick.endpoints[0].destination == "10.0.0.1:8000"
    assert pick.headers == {"x-data-parallel-host-port": "10.0.0.1:8200"}
    director.picks.served(pick, "10.0.0.1:8000")
    assert store.pool(NOW).inflight.tolist() == [1]
    director.picks.release(pick, NOW)
    assert store.pool(NOW).inflight.tolist() == [0]
