"""What a decision says is what decided."""

import gc
import json
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from benchmarks.routing.arms import ARMS, COUNTED
from discovery import Instance, InstanceUpdatedEvent
from epp.config.picker_config import load_config
from epp.decisions.query import DecisionQuery, DecisionReader
from epp.decisions.recorder import PickRecorder
from epp.decisions.ring import DecisionRing
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Endpoint, EndpointPool, Floats
from epp.endpoints.load import Load
from epp.request.control_headers import MOST_TEXT
from epp.request.inference_request import InferenceRequest, parse_request
from epp.request.rejection import Rejection
from epp.request.subset import Subset
from epp.scheduling.cached_scores import WeightedScorer
from epp.scheduling.director import Director
from epp.scheduling.pick import Pick, SchedulingContext
from epp.scheduling.pickers import MaxScorePicker
from epp.scheduling.profile import SchedulerProfile
from epp.scheduling.profile_handlers import SingleProfileHandler
from epp.scheduling.request_reader import Policy
from epp.scheduling.saturation import UtilizationDetector
from epp.scheduling.scheduler import Scheduler
from epp.scheduling.waiting import WaitingRequest
from tests.epp.scheduling.endpoint_pools import add_worker
from tests.epp.scheduling.fifo import Fifo

NOW = 100.0
CONFIGURATIONS = [None, ARMS[COUNTED].config, *[arm.config for arm in ARMS.values()][1:4:2]]
"""Least cost; a lazy pick that reads what is in flight; the Go picker's weights, and its filter by prefix."""
SECRET = "SECRET-OF-A-CLIENT"
FILTERED = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: label-selector-filter, name: blue-only, parameters: {matchLabels: {colour: blue}}}
- {type: queue-scorer}
- {type: prefix-cache-scorer}
- {type: max-score-picker}
schedulingProfiles:
- name: main
  plugins:
  - {pluginRef: blue-only}
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
"""


def store_of(count: int, **documents: Any) -> Datastore:
    """Workers w0, w1, ... at 10.0.0.1, ..., idle and scraped just now."""
    store = Datastore()
    for i in range(count):
        add_worker(store, document=documents.get(f"w{i}"), is_seen=False)
        store.observe(store.endpoints[i], Load(waiting=0, running=0, kv_usage=0), NOW)
    return store


class Picker:
    """A director that keeps its decisions, and their JSON; whole, unless told how many a second."""

    def __init__(
        self,
        store: Datastore,
        text: str | None = None,
        most: int = 100,
        whole_a_second: int = 10**9,
        **policy: Any,
    ) -> None:
        self.now = NOW
        self.store = store
        rng = random.Random(1)
        config = load_config(text, rng=rng, staleness=2.0)
        self.scheduler = config.scheduler
        self.director = Director(store, config.scheduler, config.detector, Policy(**policy), rng)
        self.keep_in(DecisionRing(most), whole_a_second)
        self.reader = DecisionReader(self.ring, lambda: self.now, lambda: 1.7e9)

    def keep_in(self, ring: DecisionRing, whole_a_second: int = 10**9) -> None:
        self.ring = ring
        self.director.decisions = PickRecorder(ring, (), lambda: 0.0, whole_a_second)

    def ask(
        self, prompt: str = "hello", model: str = "m", subset: Subset | None = None, **headers: str
    ) -> Pick | WaitingRequest | Rejection:
        sent = {":path": "/v1/completions"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        body = json.dumps({"model": model, "prompt": prompt}).encode()
        try:
            outcome = self.director.direct(sent, body, subset, self.now)
        except Rejection as rejection:
            return rejection
        assert isinstance(outcome, Pick | WaitingRequest)
        return outcome

    def decisions(self, **query: Any) -> list[dict[str, Any]]:
        return list(self.reader.read(DecisionQuery(**{"candidates": 100} | query)))

    @property
    def last(self) -> dict[str, Any]:
        return self.decisions()[-1]


def test_a_decision_has_the_choice_its_candidates_and_what_became_of_it() -> None:
    picker = Picker(store_of(3))
    picker.store.observe(picker.store.endpoints[0], Load(waiting=9, running=5, kv_usage=0.5), NOW)
    pick = picker.ask("hello " * 100, x_request_id="r1")
    assert isinstance(pick, Pick)
    chosen, last = pick.endpoints[0], picker.last
    assert last["choice"] == {"id": chosen.id, "destination": chosen.destination}
    assert last["request"]["id"] == "r1"
    assert last["request"]["prompt_tokens"] == pick.request.prompt_tokens
    assert last["outcome"]["state"] == "sent"
    [profile] = last["profiles"]
    first, second, third = profile["candidates"]
    assert (first["id"], first["chosen"], first["rank"]) == (chosen.id, 1, 1)
    assert first["inflight"] == 0, "as it was before this request"
    assert (second["chosen"], third["id"], third["waiting"], third["running"]) == (2, "w0", 9, 5)
    assert first["total"] >= second["total"] > third["total"]
    picker.director.picks.served(pick, "10.0.0.1:8000")
    picker.director.picks.responded(pick, 200, NOW + 0.5)
    outcome = picker.last["outcome"]
    assert (outcome["state"], outcome["status"], outcome["served_by"]) == ("answering", 200, "10.0.0.1:8000")
    assert outcome["time_to_headers"] == 0.5


@pytest.mark.parametrize("text", CONFIGURATIONS)
@pytest.mark.parametrize("seed", range(3))
def test_the_scores_that_are_shown_are_those_that_decided(text: str | None, seed: int) -> None:
    """With stale, late, unreachable endpoints; against a profile that scores everything."""
    rng = random.Random(seed)
    picker = Picker(store_of(12), text)
    for step in range(30):
        picker.now += 0.02
        for endpoint in picker.store.endpoints:
            if rng.random() < 0.4:
                load = Load(waiting=rng.randrange(5), running=rng.randrange(9), kv_usage=rng.random())
                picker.store.observe(endpoint, load, picker.now - 3 * (rng.random() < 0.1), 0.05)
        worker = rng.choice(picker.store.endpoints)
        picker.store.set_lost(worker, lost=rng.random() < 0.3)
        prompt = f"prompt {rng.randrange(3)} " * 200
        expected = reported_scores(picker, prompt)
        pick = picker.ask(prompt)
        assert isinstance(pick, Pick)
        last = picker.last
        [profile] = last["profiles"]
        shown = {
            one["destination"]: one["total"] for one in profile["candidates"] if one["total"] is not None
        }
        assert shown == pytest.approx({name: expected[name] for name in shown}, abs=1e-5)
        best = profile["candidates"][0]
        assert best["id"] == pick.endpoints[0].id, step
        ties = [one for one in profile["candidates"] if one["total"] == best["total"]]
        assert best["rank"] == 1 or len(ties) > 1
        if rng.random() < 0.7:
            picker.director.picks.release(pick, picker.now)


def reported_scores(picker: Picker, prompt: str) -> Mapping[str, float]:
    """What the next request's candidates score, of a profile that scores all of them."""
    body = json.dumps({"model": "m", "prompt": prompt}).encode()
    request = parse_request({":path": "/v1/completions"}, body, lambda: "twin")
    context = SchedulingContext(request)
    pool = picker.director.candidates(context, picker.now)
    pick = picker.scheduler.with_reported_scores().schedule(context, pool)
    assert pick.scores is not None
    return pick.scores


def test_a_filter_and_what_comes_before_it_say_whom_they_left_out() -> None:
    labelled = {"labels": {"colour": "blue"}}
    store = store_of(5, w0=labelled, w1=labelled, w2={"labels": {"colour": "red"}}, w4=labelled)
    picker = Picker(store, FILTERED)
    store.set_lost(store.endpoints[4], lost=True)
    subset = Subset.of(["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000", "10.0.0.5:8000"])
    assert isinstance(picker.ask(subset=subset), Pick)
    last = picker.last
    left = {one["by"]: [endpoint["id"] for endpoint in one["endpoints"]] for one in last["left_out"]}
    assert left == {"subset": ["w3"], "unreachable": ["w4"]}
    [profile] = last["profiles"]
    assert (profile["name"], profile["filters"], profile["picker"]) == (
        "main",
        ["blue-only"],
        "max-score-picker",
    )
    assert [(one["by"], one["count"]) for one in profile["left_out"]] == [("blue-only", 1)]
    assert profile["left_out"][0]["endpoints"][0]["id"] == "w2"
    assert profile["verdicts"] == [{"by": "blue-only", "given": 3, "kept": 2}]
    assert {one["id"] for one in profile["candidates"]} == {"w0", "w1"}
    assert [(one["name"], one["weight"]) for one in profile["scorers"]] == [
        ("queue-scorer", 2.0),
        ("prefix-cache-scorer", 3.0),
    ]


BY_QUEUE = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: queue-scorer}
- {type: max-score-picker}
schedulingProfiles:
- name: main
  plugins:
  - {pluginRef: queue-scorer}
"""


@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize(
    ("there", "tie", "best"),
    [
        ("", ("chance", 3, 3), {"w0", "w1", "w2"}),
        ("w0", ("chance", 3, 2), {"w1", "w2"}),
        ("w0 w1", ("inflight", 3, 1), {"w2"}),
        ("w0 w1 w2", ("chance", 3, 3), {"w0", "w1", "w2"}),
    ],
)
def test_how_a_tie_was_broken(there: str, tie: tuple[str, int, int], best: set[str], stale: bool) -> None:
    """`there`: where another request is in flight. Of stale endpoints, what is in flight is all that is compared."""
    picker = Picker(store_of(3), BY_QUEUE)
    for endpoint in picker.store.endpoints:
        if endpoint.id in there:
            picker.store.reserve(endpoint)
    picker.now += 10.0 * stale
    by, equal, fewest = tie
    expected = {"endpoints": fewest if stale else equal, "fewest_in_flight": fewest, "broken_by": by}
    chosen = set()
    for _ in range(40):
        pick = picker.ask()
        assert isinstance(pick, Pick)
        chosen.add(pick.endpoints[0].id)
        assert picker.last["profiles"][0]["tie"] == (expected if expected["endpoints"] > 1 else None)
        picker.director.picks.release(pick, picker.now)
    assert chosen == best, "what was said of chance holds"


def test_where_the_best_is_alone_or_not_taken_there_is_no_tie() -> None:
    picker = Picker(store_of(3), BY_QUEUE)
    picker.store.observe(picker.store.endpoints[0], Load(waiting=1, running=0, kv_usage=0), NOW)
    picker.store.observe(picker.store.endpoints[1], Load(waiting=1, running=0, kv_usage=0), NOW)
    picker.ask()
    assert picker.last["profiles"][0]["tie"] is None
    by_chance = Picker(store_of(3), BY_QUEUE.replace("max-score-picker", "random-picker"))
    by_chance.ask()
    assert by_chance.last["profiles"][0]["tie"] is None


def test_refusals_are_decisions_too() -> None:
    picker = Picker(store_of(1, w0={"model": {"name": "m"}}))
    assert isinstance(picker.ask(model="other"), Rejection)
    with pytest.raises(Rejection):
        picker.director.direct({"x-request-id": "bad", ":path": "/v1/completions?key=x"}, b"{", None, NOW)
    unknown, unreadable = picker.decisions()
    assert (unknown["choice"], unknown["refusal"]["status"], unknown["refusal"]["code"]) == (
        None,
        404,
        "model_not_found",
    )
    assert unknown["outcome"]["state"] == "refused"
    assert unreadable["request"]["id"] == "bad"
    assert unreadable["request"]["path"] == "/v1/completions"
    assert unreadable["outcome"]["status"] == 400


def test_nothing_of_a_prompt_or_a_header_is_kept() -> None:
    picker = Picker(store_of(2, w0={"model": {"name": "m"}}, w1={"model": {"name": "m"}}))
    pick = picker.ask(f"{SECRET} " * 50, authorization=f"Bearer {SECRET}", cookie=SECRET)
    assert isinstance(pick, Pick)
    assert isinstance(picker.ask(SECRET, model="other", authorization=SECRET), Rejection)
    with pytest.raises(Rejection):
        picker.director.direct({"authorization": SECRET}, b'{"prompt": "%b"' % SECRET.encode(), None, NOW)
    picker.director.picks.release(pick, NOW)
    pick.over("end of stream", NOW)
    del pick
    for text in reachable_texts(picker.ring):
        assert SECRET not in text


def reachable_texts(root: object) -> list[str]:
    """All texts and bytes that these objects keep in memory, but not those of modules and classes."""
    seen: dict[int, object] = {}
    waiting = [root]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type) or type(one).__name__ in ("module", "function"):
            continue
        seen[id(one)] = one
        waiting += gc.get_referents(one)
    return [
        one if isinstance(one, str) else bytes(one).decode("latin-1")
        for one in seen.values()
        if isinstance(one, str | bytes | bytearray | memoryview)
    ]


def test_texts_of_clients_are_cut() -> None:
    picker = Picker(store_of(1))
    long = "x" * 10_000
    assert isinstance(picker.ask(model=long, x_request_id=long, x_llm_d_inference_fairness_id=long), Pick)
    request = picker.last["request"]
    assert [len(request[name]) for name in ("id", "model", "fairness_id")] == [MOST_TEXT] * 3


def test_a_ring_is_bounded_in_number_and_in_bytes() -> None:
    picker = Picker(store_of(3), most=5)
    for _ in range(12):
        picker.ask()
    assert [one["sequence"] for one in picker.decisions()] == [8, 9, 10, 11, 12]
    assert [one["sequence"] for one in picker.decisions(after=3, limit=2)] == [8, 9]
    assert [one["sequence"] for one in picker.decisions(after=10)] == [11, 12]
    assert picker.decisions(after=12) == []
    assert [one["sequence"] for one in picker.decisions(limit=2)] == [11, 12]
    one = next(picker.ring.newest()).size
    small = DecisionRing(1000, max_bytes=3 * one)
    picker.keep_in(small)
    for _ in range(12):
        picker.ask()
    assert len(small) == 3
    assert small.bytes <= 3 * one


def test_a_request_that_was_not_parsed_costs_the_next_decision_nothing() -> None:
    picker = Picker(store_of(3))
    instance = Instance("w0", "ns", "c", "10.0.0.1", 8000, "a")
    picker.store.apply(
        InstanceUpdatedEvent(instance, instance), {"model": {"name": "m", "adapters": ["a" * 80]}}
    )
    picker.ask()
    with pytest.raises(Rejection):
        picker.director.direct({":method": "POST", ":path": "/v1/completions"}, b"{", None, picker.now)
    picker.ask()
    picker.ask()
    *_, unread, after, last = [one.size for one in picker.ring.after(0)]
    assert unread < after == last, "the endpoints are counted once"


class ReusedColumn:
    """A scorer of another package that answers with the same array each time."""

    published_only = False

    def __init__(self) -> None:
        self.column: Floats = np.zeros(0)

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Floats:
        if len(self.column) != len(pool):
            self.column = np.zeros(len(pool))
        self.column += 0.1
        return self.column


def test_a_scorer_may_use_its_column_again() -> None:
    picker = Picker(store_of(2))
    profile = SchedulerProfile(
        scorers=[WeightedScorer(ReusedColumn())], picker=MaxScorePicker(random.Random(1))
    )
    picker.director.reconfigure(
        Scheduler({"p": profile}, SingleProfileHandler()), UtilizationDetector(), Policy()
    )
    for _ in range(3):
        picker.ask()
    totals = [one["profiles"][0]["candidates"][0]["total"] for one in picker.decisions()]
    assert totals == pytest.approx([0.1, 0.2, 0.3])


def test_a_plugin_that_fails_when_it_is_told_of_the_pick_leaves_no_choice() -> None:
    picker = Picker(store_of(2))
    producers: list[Any] = [UntoldProducer()]
    picker.director.picks.producers = producers
    with pytest.raises(OSError, match="no room"):
        picker.ask()
    last = picker.last
    assert (last["outcome"]["state"], last["choice"], last["profile"]) == ("refused", None, None)
    assert last["refusal"]["code"] == "OSError"
    assert "no room" not in json.dumps(last), "a plugin's text may quote the request"


class UntoldProducer:
    """A data producer of another package that fails when it hears of a pick."""

    def picked(self, request: InferenceRequest, endpoints: tuple[Endpoint, ...]) -> None:
        raise OSError("no room")

    def failed(self, request: InferenceRequest) -> None: ...


@pytest.mark.parametrize("how", ["abandoned", "expired", "picked"])
def test_a_request_that_waits_keeps_no_endpoints_and_says_in_the_end_which_there_were(how: str) -> None:
    picker = Picker(store_of(2))
    fifo = Fifo(1, ttl=5.0)
    picker.director.use_admission(fifo)
    only_one = Subset.of(["10.0.0.1:8000"])
    first, waiting = picker.ask(subset=only_one), picker.ask(subset=only_one)
    assert isinstance(first, Pick)
    assert isinstance(waiting, WaitingRequest)
    decision = waiting.context.decision
    assert decision is not None
    assert (decision.pool, decision.steps) == (None, ()), "it may wait for minutes, and so may many"
    add_worker(picker.store, address="10.0.0.9", is_seen=False)
    picker.now += 6.0 if how == "expired" else 1.0
    if how == "abandoned":
        waiting.abandon(picker.now)
    elif how == "expired":
        picker.director.dispatch(picker.now)
    else:
        picker.director.picks.release(first, picker.now)
        picker.director.dispatch(picker.now)
    last = picker.last
    assert (last["waited"], last["endpoints"]) == (picker.now - NOW, 3)
    assert decision.pool is None
    assert len(picker.ring) == 2


def test_workers_that_change_all_the_time_are_counted_as_memory_of_the_ring() -> None:
    picker = Picker(store_of(3), most=1000)
    picker.keep_in(DecisionRing(1000, max_bytes=2_000_000))
    instance = Instance("w0", "ns", "c", "10.0.0.1", 8000, "a")
    stable = ["adapter " * 10] * 3
    for change in range(80):
        adapters = [f"adapter-{change}-{number}" for number in range(1_000)] if change % 2 else stable
        document = {"model": {"name": "m", "adapters": adapters}}
        picker.store.apply(InstanceUpdatedEvent(instance, instance), document)
        picker.ask()
    kept = {id(endpoint): endpoint for one in picker.ring.newest() for endpoint in one.endpoints}
    models = sum(len(model) for endpoint in kept.values() for model in endpoint.models)
    assert models < picker.ring.bytes <= 2_000_000
    assert 10 < len(picker.ring) < 80
    for _ in range(100):
        picker.ask()
    assert len(picker.ring) > 100, "what stays the same is counted once"
