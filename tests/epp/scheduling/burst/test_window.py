"""Prompts wait for the end of their window, and go where they were placed."""

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from adsum.config.problems import ConfigError
from discovery import Instance, InstanceAddedEvent, InstanceRemovedEvent
from epp.config.picker_config import PickerConfig, load_config
from epp.endpoints.datastore import Datastore
from epp.endpoints.load import Load
from epp.request.rejection import Rejection
from epp.scheduling.burst.placement import PlacementRules, place
from epp.scheduling.director import Director
from epp.scheduling.pick import Pick
from epp.scheduling.request_reader import Policy
from epp.scheduling.waiting import WaitingRequest
from tests.epp.scheduling.endpoint_pools import director_of, text_of

SCORER = {
    "type": "prefix-cache-scorer",
    "parameters": {"prefixMatchInfoProducerName": "burst-prefix-cache-producer"},
}


def load(*more: dict[str, Any], before: Any = None, **parameters: Any) -> PickerConfig:
    burst = {"type": "burst-prefix-cache-producer", "parameters": parameters}
    text = text_of(burst, SCORER, *more)
    return load_config(text, rng=random.Random(1), before=before)


class Picker:
    def __init__(self, config: PickerConfig, count: int = 4, models: Sequence[str] = ()) -> None:
        self.store = Datastore()
        for number in range(count):
            document = {"model": {"name": models[number]}} if models else {}
            self.store.apply(InstanceAddedEvent(self.instance(number)), document)
        self.director = director_of(config, self.store)
        self.picked: dict[str, str] = {}
        self.picks: list[Pick] = []

    @staticmethod
    def instance(number: int) -> Instance:
        return Instance(f"e{number}", "ns", "c", f"10.0.0.{number + 1}", 8000, "a")

    def send(self, name: str, prompt: str, now: float, model: str = "m") -> WaitingRequest | Pick:
        body = msgspec.json.encode({"model": model, "prompt": prompt})
        outcome = self.director.direct({":path": "/v1/completions"}, body, None, now)
        if isinstance(outcome, WaitingRequest):
            outcome.subscribe(lambda pick, now: self._settle(name, pick))
        else:
            assert isinstance(outcome, Pick)
            self._settle(name, outcome)
        return outcome

    def _settle(self, name: str, pick: Pick | Exception) -> None:
        if isinstance(pick, Pick):
            self.picks.append(pick)
        self.picked[name] = pick.endpoints[0].id if isinstance(pick, Pick) else type(pick).__name__


def test_equal_prompts_of_one_window_go_to_one_endpoint() -> None:
    picker = Picker(load())
    for at in range(8):
        picker.send(f"a{at}", "a" * 3000, now=1.0 + at / 1000)
        picker.send(f"b{at}", "b" * 3000, now=1.0 + at / 1000)
    assert picker.director.dispatch(1.05) == pytest.approx(1.1), (
        "the window ends 100 ms after its first prompt"
    )
    assert not picker.picked
    assert picker.director.dispatch(1.1) is None
    assert len(picker.picked) == 16
    assert len({to for name, to in picker.picked.items() if name[0] == "a"}) == 1
    assert len({to for name, to in picker.picked.items() if name[0] == "b"}) == 1
    assert picker.picked["a0"] != picker.picked["b0"]
    assert picker.director.dispatch(1.2) is None, "the next window begins with the next prompt"
    picker.send("c", "c" * 3000, now=2.0)
    assert picker.director.dispatch(2.0) == pytest.approx(2.1)


def test_prompts_are_placed_where_their_model_is_served() -> None:
    picker = Picker(load(), models="aabb")
    picker.send("a", "a" * 3000, now=1.0, model="a")
    for model in "ba":
        for at in range(8):
            picker.send(f"{model}{at}", "a" * 3000, now=1.0, model=model)
    picker.director.dispatch(1.1)
    found = {
        model: {to for name, to in picker.picked.items() if name.startswith(model)} for model in ("a", "b")
    }
    assert [len(one) for one in found.values()] == [1, 1]
    assert found["a"] <= {"e0", "e1"}
    assert found["b"] <= {"e2", "e3"}


def test_nothing_is_placed_where_a_page_is_late() -> None:
    picker = Picker(load())
    for number, endpoint in enumerate(picker.store.endpoints):
        picker.store.observe(endpoint, Load(waiting=0, running=number, kv_usage=0.0), 0.9, 0.05)
        picker.store.expect_page(endpoint, 5.0 if number else 1.0)
    for at in range(8):
        picker.send(str(at), "a" * 3000, now=1.0)
    picker.director.dispatch(1.1)
    assert set(picker.picked.values()) == {"e1"}


def test_what_does_not_fit_into_the_window_and_what_has_no_prompt_goes_at_once() -> None:
    picker = Picker(load(maxBatchSize=2))
    outcomes = [picker.send(str(at), "a" * 3000, now=1.0) for at in range(3)]
    assert [type(one) for one in outcomes] == [WaitingRequest, WaitingRequest, Pick]
    bodyless = picker.director.direct({":path": "/v1/models", ":method": "GET"}, b"", None, 1.0)
    assert isinstance(bodyless, Pick)


def test_a_client_that_leaves_is_not_placed() -> None:
    picker = Picker(load())
    left = picker.send("left", "a" * 3000, now=1.0)
    picker.send("stays", "a" * 3000, now=1.0)
    assert isinstance(left, WaitingRequest)
    left.abandon(1.05)
    picker.director.dispatch(1.1)
    assert list(picker.picked) == ["stays"]


def test_a_client_that_leaves_makes_room_in_the_window() -> None:
    picker = Picker(load(maxBatchSize=1))
    left = picker.send("left", "a" * 3000, now=1.0)
    assert isinstance(left, WaitingRequest)
    left.abandon(1.05)
    assert isinstance(picker.send("next", "a" * 3000, now=1.06), WaitingRequest)


def test_nothing_is_left_of_a_window_when_the_endpoints_are_gone() -> None:
    picker = Picker(load(), count=1)
    picker.send("a", "a" * 3000, now=1.0)
    picker.store.apply(InstanceRemovedEvent(picker.instance(0), "deleted"))
    picker.director.dispatch(1.1)
    assert picker.picked == {"a": Rejection.__name__}


@pytest.mark.parametrize("keeps_burst", [True, False])
def test_requests_that_wait_go_at_once_when_the_configuration_changes(*, keeps_burst: bool) -> None:
    first = load()
    picker = Picker(first)
    picker.send("a", "a" * 3000, now=1.0)
    changed = load(windowDurationMs=5000, before=first.plugins)
    if not keeps_burst:
        changed = load_config(None, rng=random.Random(1))
    picker.director.reconfigure(changed.scheduler, changed.detector, Policy())
    picker.director.dispatch(1.01)
    assert list(picker.picked) == ["a"]
    assert isinstance(picker.send("b", "b" * 3000, now=1.02), WaitingRequest if keeps_burst else Pick)


def test_a_saturated_pool_refuses_before_the_window() -> None:
    config = load()
    store = Picker(config, count=1).store
    store.observe(store.endpoints[0], Load(waiting=99, running=0, kv_usage=1.0), 1.0)
    low = Policy(objectives={"low": -1})
    director = Director(store, config.scheduler, config.detector, low, random.Random(2))
    body = msgspec.json.encode({"model": "m", "prompt": "x" * 3000})
    headers = {":path": "/v1/completions", "x-llm-d-inference-objective": "low"}
    with pytest.raises(Rejection):
        director.direct(headers, body, None, 1.0)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"windowDurationMs": 0}, "windowDurationMs"),
        ({"windowDurationMs": 10_001}, "windowDurationMs"),
        ({"maxPerReplica": 0}, "maxPerReplica must be at least 1, or -1"),
        ({"maxBatchSize": 0}, "maxBatchSize must be at least 1, or -1"),
        ({"maxPrefixTokensToMatch": 63}, "maxPrefixTokensToMatch must be 0, or at least blockSizeTokens"),
        ({"balanceBy": "blocks"}, "balanceBy"),
    ],
)
def test_what_is_wrong_with_its_parameters_is_told(parameters: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(**parameters)


def test_a_request_waits_in_one_window_only() -> None:
    other = {"type": "burst-prefix-cache-producer", "name": "other"}
    scorer = {
        "type": "prefix-cache-scorer",
        "name": "s",
        "parameters": {"prefixMatchInfoProducerName": "other"},
    }
    with pytest.raises(ConfigError, match="only one burst-prefix-cache-producer"):
        load(other, scorer)


def test_what_has_to_remember_cannot_be_a_burst() -> None:
    lru = {"type": "no-hit-lru-scorer", "parameters": SCORER["parameters"]}
    with pytest.raises(ConfigError, match="cannot be used here, expected an approx-prefix-cache-producer"):
        load(lru)


CASES = yaml.load((Path(__file__).parent / "burst_placements.yaml").read_text(), yaml.CSafeLoader)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_prompts_are_placed_as_in_the_go_picker(case: dict[str, Any]) -> None:
    prompts = [one["blocks"] for one in case["prompts"] for _ in range(one["count"])]
    expected = [to for one in case["prompts"] for to in one["to"] or [None] * one["count"]]
    assert place(prompts, case["running"], PlacementRules(**case.get("rules", {}))) == expected


def seconds(count: int, endpoints: int, rules: PlacementRules) -> float:
    """Of processor time, for prompts that begin alike; the least of three times."""
    prompts = [[*range(10), 1000 + number] for number in range(count)]
    times = []
    for _ in range(3):
        started = time.process_time()
        place(prompts, [0.0] * endpoints, rules)
        times.append(time.process_time() - started)
    return min(times)


ALIKE = [PlacementRules(common_blocks=5), PlacementRules(common_blocks=5, by_blocks=True)]


@pytest.mark.parametrize("rules", ALIKE)
def test_many_prompts_and_many_endpoints_take_time_in_proportion(rules: PlacementRules) -> None:
    assert seconds(4000, 4, rules) < 25 * seconds(400, 4, rules)
    assert seconds(200, 2000, rules) < 10 * seconds(200, 20, rules)
