"""What happens to tokens in flight when endpoints go, when another one answers, and what their metrics say."""

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from discovery import InstanceAddedEvent, InstanceRemovedEvent
from epp.config.picker_config import load_config
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Endpoint
from epp.request.inference_request import InferenceRequest, parse_request
from epp.request.subset import Subset
from epp.scheduling.director import Director
from epp.scheduling.in_flight_load.plugins import INFLIGHT_LOAD_PRODUCER, ConcurrencyDetector
from epp.scheduling.in_flight_load.producer import InFlightLoadProducer, InFlightTokens
from epp.scheduling.pick import Pick
from epp.scheduling.plugin import DataProducer, RequestFollower
from epp.scheduling.profile_handlers import SingleProfileHandler
from epp.scheduling.request_reader import Policy
from epp.scheduling.scheduler import Scheduler
from epp.telemetry.picker_metrics import PluginMetrics
from tests.epp.scheduling.endpoint_pools import add_worker, config_of, director_of, text_of


class Picker:
    def __init__(self, count: int = 2) -> None:
        self.config = config_of({"type": "token-load-scorer"})
        self.store = Datastore()
        self.instances = [add_worker(self.store, f"e{number}") for number in range(count)]
        policy = Policy(objectives={"low": -1})
        self.director = Director(
            self.store, self.config.scheduler, self.config.detector, policy, random.Random(2)
        )

    @property
    def load(self) -> InFlightLoadProducer:
        [found] = [one for one in self.director.producers if isinstance(one, InFlightLoadProducer)]
        return found

    def tokens(self) -> list[float]:
        return self.load.tokens(self.store.pool(0.0)).tolist()

    def send(self, to: int, tokens: int = 100, **headers: str) -> Pick:
        body = msgspec.json.encode({"model": "m", "prompt": "x" * (tokens * 4 - 2), "stream": True})
        named = {"x-llm-d-inference-" + name.replace("_", "-"): value for name, value in headers.items()}
        subset = Subset.of([f"10.0.0.{to + 1}:8000"])
        pick = self.director.direct({":path": "/v1/completions", **named}, body, subset, 0.0)
        assert isinstance(pick, Pick)
        return pick

    @property
    def metrics(self) -> PluginMetrics:
        return PluginMetrics(lambda: {"load": (INFLIGHT_LOAD_PRODUCER, [self.load])})

    def shown_once(self) -> bool:
        """Whether no two samples have the same labels."""
        shown = [
            (one.name, *one.labels.values()) for family in self.metrics.collect() for one in family.samples
        ]
        return len(shown) == len(set(shown))

    def sample(
        self, what: str, endpoint: str, fairness_id: str = "default-flow", priority: int = 0
    ) -> float | None:
        registry = CollectorRegistry()
        registry.register(self.metrics)
        labels = {
            "endpoint_name": endpoint, "namespace": "ns", "producer_name": "inflight-load-producer",
            "fairness_id": fairness_id, "priority": str(priority),
        }  # fmt: skip
        return registry.get_sample_value(f"llm_d_epp_inflight_{what}", labels)


def test_where_another_endpoint_answers_the_tokens_are_there() -> None:
    picker = Picker()
    pick = picker.send(0)
    picker.director.picks.served(pick, "10.0.0.2:8000")
    picker.director.picks.responded(pick, 200, 0.0)
    assert picker.tokens() == [0, 100]
    assert picker.sample("requests", "e1") == 1
    picker.director.picks.release(pick, 0.0)
    assert picker.tokens() == [0, 0]


class Faulty(RequestFollower):
    """An installed data producer with a fault in one of its methods."""

    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.told: list[str] = []

    def picked(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> None:
        self._tell("picked")

    def failed(self, request: InferenceRequest) -> None:
        self._tell("failed")

    def _tell(self, what: str) -> None:
        self.told.append(what)
        if what == self.fault:
            raise RuntimeError(what)


def with_producers(picker: Picker, *further: DataProducer) -> Picker:
    config = picker.config
    scheduler = Scheduler(config.scheduler.profiles, SingleProfileHandler(), further)
    picker.director.reconfigure(scheduler, config.detector, Policy())
    return picker


def test_a_pick_that_a_producer_fails_is_in_flight_nowhere() -> None:
    first, faulty, last = Faulty(""), Faulty("picked"), Faulty("")
    picker = with_producers(Picker(), first, faulty, last)
    with pytest.raises(RuntimeError, match="picked"):
        picker.send(0)
    assert picker.tokens() == [0, 0]
    assert not picker.load.labelled
    assert [one.told for one in (first, faulty, last)] == [["picked", "failed"], ["picked", "failed"], []]


def test_a_request_ends_though_a_producer_fails() -> None:
    picker = with_producers(Picker(), Faulty("failed"))
    pick = picker.send(0)
    with pytest.raises(RuntimeError, match="failed"):
        picker.director.picks.release(pick, 0.0)
    assert picker.tokens() == [0, 0]


@given(st.lists(st.sampled_from(["answered", "ended", "move"]), max_size=8))
def test_nothing_is_left_in_whatever_order_a_request_ends(steps: list[str]) -> None:
    picker = Picker()
    pick = picker.send(0)
    for step in steps:
        for count in pick.request.counts:
            assert isinstance(count, InFlightTokens)
            if step == "move":
                picker.director.picks.served(pick, "10.0.0.2:8000")
                picker.director.picks.responded(pick, 200, 0.0)
            else:
                getattr(count, step)()
    picker.director.picks.release(pick, 0.0)
    assert picker.tokens() == [0, 0]
    assert not picker.load.labelled


def test_an_endpoint_that_goes_and_comes_again_has_nothing_in_flight() -> None:
    picker = Picker()
    before = picker.send(0)
    picker.store.apply(InstanceRemovedEvent(picker.instances[0], "not_ready"))
    picker.store.apply(InstanceAddedEvent(picker.instances[0]), {})
    assert sorted(picker.tokens()) == [0, 0]
    after = picker.send(0, 50)
    picker.director.picks.release(before, 0.0)
    assert sorted(picker.tokens()) == [0, 50]
    picker.director.picks.release(after, 0.0)
    assert picker.tokens() == [0, 0]


def test_the_column_follows_endpoints_that_come() -> None:
    picker = Picker(1)
    picker.send(0)
    assert picker.tokens() == [100]
    add_worker(picker.store, "e9", address="10.0.0.9", is_seen=False)
    assert sorted(picker.tokens()) == [0, 100]
    picker.send(0)
    assert sorted(picker.tokens()) == [0, 200]


def test_the_metrics_say_who_has_what_in_flight() -> None:
    picker = Picker()
    first = picker.send(0, fairness_id="alice")
    second = picker.send(0, objective="low")
    picker.send(1, 30)
    assert picker.sample("tokens", "e0", "alice") == 100
    assert picker.sample("requests", "e0", "default-flow", -1) == 1
    assert picker.sample("tokens", "e1") == 30
    for count in first.request.counts:
        count.answered()
    assert picker.sample("tokens", "e0", "alice") == 0
    assert picker.sample("requests", "e0", "alice") == 1
    picker.director.picks.release(first, 0.0)
    picker.director.picks.release(second, 0.0)
    assert picker.sample("requests", "e0", "alice") is None
    assert picker.sample("requests", "e0") == 0, "an endpoint with nothing in flight shows it"


def test_clients_cannot_make_series_without_end() -> None:
    picker = Picker()
    picks = [picker.send(0, fairness_id=f"client-{number}") for number in range(1200)]
    assert len(picker.load.labelled) == 1001
    assert picker.sample("requests", "e0", "other") == 200
    for pick in picks:
        picker.director.picks.release(pick, 0.0)
    assert not picker.load.labelled


def test_ids_that_the_metrics_show_alike_have_one_sample() -> None:
    picker = Picker()
    for fairness_id in ("a" * 300, "b" * 300, "c\x01", "c"):
        picker.send(0, fairness_id=fairness_id)
    assert picker.sample("requests", "e0", "other") == 2
    assert picker.sample("tokens", "e0", "other") == 200
    assert picker.sample("requests", "e0", "c") == 2
    assert picker.shown_once()


@pytest.mark.parametrize("comes_again", [True, False])
def test_requests_of_an_endpoint_that_is_gone_keep_its_labels(*, comes_again: bool) -> None:
    picker = Picker()
    before = picker.send(0)
    picker.store.apply(InstanceRemovedEvent(picker.instances[0], "deleted"))
    if comes_again:
        picker.store.apply(InstanceAddedEvent(replace(picker.instances[0], incarnation="b")), {})
        picker.send(0)
    assert picker.sample("requests", "e0") == 1 + comes_again
    assert picker.shown_once()
    picker.director.picks.release(before, 0.0)
    assert picker.sample("requests", "e0") == (1 if comes_again else None)
    assert picker.shown_once()


def test_a_request_ends_once_with_each_configuration() -> None:
    picker = Picker()
    pick, load = picker.send(0), picker.load
    other = load_config(None, rng=random.Random(1))
    picker.director.reconfigure(other.scheduler, other.detector, Policy())
    assert not any(isinstance(one, InFlightLoadProducer) for one in picker.director.producers)
    for _ in range(2):
        picker.director.picks.release(pick, 0.0)
    assert load.tokens(picker.store.pool(0.0)).tolist() == [0, 0]


def test_what_is_in_flight_stays_counted_when_the_configuration_changes_elsewhere() -> None:
    picker = Picker()
    picker.send(0)
    text = text_of({"type": "token-load-scorer"}, {"type": "queue-scorer"})
    changed = load_config(text, rng=random.Random(1), before=picker.config.plugins)
    picker.director.reconfigure(changed.scheduler, changed.detector, Policy())
    assert picker.tokens() == [100, 0]


@pytest.mark.parametrize("listed", [True, False])
def test_the_count_costs_nothing_where_nobody_asks_for_it(*, listed: bool) -> None:
    plugins = [{"type": "queue-scorer"}, *([{"type": "inflight-load-producer"}] if listed else [])]
    producers = config_of(*plugins).scheduler.producers
    assert [type(one) for one in producers] == ([InFlightLoadProducer] if listed else [])


CASES = yaml.load((Path(__file__).parent / "go_token_choices.yaml").read_text(), yaml.CSafeLoader)
BLOCK_BYTES = 64 * 4
PATH = {":path": "/v1/completions"}


def text(blocks: str) -> str:
    """So many bytes that they are whole blocks as JSON, with its quotes."""
    return "".join(
        letter * BLOCK_BYTES * int(count) for letter, count in re.findall(r"([a-z])(\d+)", blocks)
    )[:-2]


class CasePicker:
    """The picker of one case; its requests by name."""

    def __init__(self, case: dict[str, Any]) -> None:
        sections: dict[str, Any] = {}
        if "detector" in case:
            sections["flowControl"] = {"saturationDetector": {"pluginRef": case["detector"]}}
        config = config_of(*case["plugins"], **sections)
        self.store = Datastore()
        for number in range(case["endpoints"]):
            add_worker(self.store, f"e{number}", is_seen=False)
        self.scheduler = config.scheduler
        self.profile = config.scheduler.profiles["default"]
        self.director = director_of(config, self.store)
        self.picks: dict[str, Pick] = {}

    @property
    def tokens(self) -> list[float]:
        [load, *_] = [one for one in self.scheduler.producers if isinstance(one, InFlightLoadProducer)]
        return load.tokens(self.store.pool(0.0)).tolist()

    def send(self, step: dict[str, Any]) -> None:
        given = {"model": "m", "prompt": text(step["prompt"]), "stream": step.get("stream", True)}
        body = msgspec.json.encode(given | step.get("fields", {}))
        self._check(step, body)
        subset = Subset.of([f"10.0.0.{step['to'] + 1}:8000"]) if "to" in step else None
        pick = self.director.direct(PATH, body, subset, 0.0)
        assert isinstance(pick, Pick)
        assert int(pick.endpoints[0].id[1:]) in step.get("picked", [step.get("to")])
        self.picks[step["send"]] = pick

    def _check(self, step: dict[str, Any], body: bytes) -> None:
        request, pool = parse_request(PATH, body, lambda: "r"), self.store.pool(0.0)
        for producer in self.scheduler.producers:
            producer.prepare(request, pool)
        if "kept" in step:
            assert self.profile.filters[0].filter(request, pool).nonzero()[0].tolist() == step["kept"]
        if "scores" in step:
            scores = self.profile.scorers[0].scorer.score(request, pool)
            assert not isinstance(scores, dict)
            assert list(scores) == pytest.approx(step["scores"])

    def go_on(self, step: dict[str, Any]) -> None:
        if "headers" in step:
            self.director.picks.responded(self.picks[step["headers"]], step.get("status", 200), 0.0)
        if "piece" in step:
            pick = self.picks[step["piece"]]
            for count in pick.request.counts if pick.request.streaming else ():
                count.answered()
        if "end" in step:
            self.director.picks.release(self.picks[step["end"]], 0.0)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_tokens_in_flight_decide_as_in_the_go_picker(case: dict[str, Any]) -> None:
    picker = CasePicker(case)
    for step in case["steps"]:
        picker.send(step) if "send" in step else picker.go_on(step)
        if "tokens" in step:
            assert picker.tokens == step["tokens"], step
        if "tokens-at-0" in step:
            assert picker.tokens[0] == step["tokens-at-0"], step
        if "full" in step:
            assert picker.director.saturation(0.0) == pytest.approx(step["full"]), step


def test_a_pool_without_endpoints_is_full() -> None:
    assert ConcurrencyDetector(InFlightLoadProducer()).saturation(Datastore().pool(0.0)) == 1.0


def test_who_has_no_prompt_may_go_anywhere() -> None:
    picker = CasePicker({"plugins": [{"type": "prefix-cache-affinity-filter"}], "endpoints": 2})
    request, pool = (
        parse_request({":path": "/v1/models", ":method": "GET"}, b"", lambda: "r"),
        picker.store.pool(0.0),
    )
    for producer in picker.scheduler.producers:
        producer.prepare(request, pool)
    assert picker.profile.filters[0].filter(request, pool).all()
