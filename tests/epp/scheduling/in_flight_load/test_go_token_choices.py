"""Tokens in flight count, and decide, as the Go picker's source says, case by case (go_token_choices.yaml)."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from epp.endpoints.datastore import Datastore
from epp.request.inference_request import parse_request
from epp.request.subset import Subset
from epp.scheduling.in_flight_load.plugins import ConcurrencyDetector
from epp.scheduling.in_flight_load.producer import InFlightLoadProducer
from epp.scheduling.pick import Pick
from tests.epp.scheduling.endpoint_pools import add_worker, config_of, director_of

CASES = yaml.load((Path(__file__).parent / "go_token_choices.yaml").read_text(), yaml.CSafeLoader)
BLOCK_BYTES = 64 * 4
PATH = {":path": "/v1/completions"}


def text(blocks: str) -> str:
    """So many bytes that they are whole blocks as JSON, with its quotes."""
    return "".join(
        letter * BLOCK_BYTES * int(count) for letter, count in re.findall(r"([a-z])(\d+)", blocks)
    )[:-2]


class Picker:
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
    picker = Picker(case)
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
    picker = Picker({"plugins": [{"type": "prefix-cache-affinity-filter"}], "endpoints": 2})
    request, pool = (
        parse_request({":path": "/v1/models", ":method": "GET"}, b"", lambda: "r"),
        picker.store.pool(0.0),
    )
    for producer in picker.scheduler.producers:
        producer.prepare(request, pool)
    assert picker.profile.filters[0].filter(request, pool).all()
