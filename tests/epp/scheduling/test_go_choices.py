"""Our plugins choose what the Go picker's source says, case by case (go_choices.yaml)."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml

from epp.config.picker_config import PickerConfig
from epp.endpoints.endpoint import NO_ADAPTERS, Column, EndpointPool, rows_of, unknown_numbers
from epp.endpoints.worker_metrics import WORKER_METRICS
from epp.request.inference_request import InferenceRequest, parse_request
from epp.scheduling.plugin import Scores
from tests.epp.scheduling.endpoint_pools import config_of, make_endpoint

CASES = yaml.load((Path(__file__).parent / "go_choices.yaml").read_text(), yaml.CSafeLoader)
HEAT = {"name": "vllm", "customMetrics": [{"attributeKey": "Heat", "metricSpec": "heat"}]}
COLUMNS = ("waiting", "running", "kv_usage", "inflight")


def load(case: dict[str, Any]) -> PickerConfig:
    extractor = {"type": "core-metrics-extractor", "parameters": {"engineConfigs": [HEAT]}}
    profiles = [{"name": "default", "plugins": [{"pluginRef": case["plugin"]["type"]}]}]
    return config_of(case["plugin"], extractor, *case.get("more", ()), schedulingProfiles=profiles)


def make_pool(given: list[dict[str, Any]], config: PickerConfig) -> EndpointPool:
    rows = rows_of((*WORKER_METRICS, *config.attributes))
    numbers = np.repeat(unknown_numbers(rows), len(given), axis=1)
    numbers[Column.SCRAPED_AT] = 0.0
    for at, one in enumerate(given):
        for name in COLUMNS:
            numbers[Column[name.upper()], at] = one.get(name, 0.0)
        for attribute in config.attributes:
            numbers[rows[attribute], at] = one.get("heat", attribute.unknown)
    endpoints = [
        make_endpoint(f"e{at}", address=f"10.0.0.{at + 1}", labels=one.get("labels", {}), namespace="ns")
        for at, one in enumerate(given)
    ]
    return EndpointPool(endpoints, numbers, [NO_ADAPTERS] * len(given), now=0.0, rows=rows)


def make_request(given: dict[str, Any], pool: EndpointPool) -> InferenceRequest:
    prompt = given.get("prompt", "x") * 1000
    if "tokens" in given:
        prompt = "x" * (given["tokens"] * 4 - 2)  # as JSON, with its quotes
    body = msgspec.json.encode({"model": "m", "prompt": prompt})
    request = parse_request({":path": "/v1/completions"} | given.get("headers", {}), body, lambda: "r")
    if "peer" in given:
        request.peer = pool.endpoints[given["peer"]]
    return request


def column(scores: Scores, count: int) -> list[float]:
    return scores.tolist() if isinstance(scores, np.ndarray) else [scores.get(at, 0.0) for at in range(count)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_plugin_chooses_as_in_the_go_picker(case: dict[str, Any]) -> None:
    config = load(case)
    profile = config.scheduler.profiles["default"]
    everything = make_pool(case["endpoints"], config)
    for given in case["requests"]:
        request = make_request(given, everything)
        pool = everything
        if "candidates" in given:
            pool = everything.select(np.isin(np.arange(len(everything)), given["candidates"]))
        pool.now = given.get("now", 0.0)
        for producer in config.scheduler.producers:
            producer.prepare(request, pool)
        if "kept" in given:
            assert profile.filters[0].filter(request, pool).nonzero()[0].tolist() == given["kept"], given
        if "scores" in given:
            scores = column(profile.scorers[0].scorer.score(request, pool), len(pool))
            assert scores == pytest.approx(given["scores"], abs=1e-6), given
        if "to" in given:
            for producer in config.scheduler.producers:
                producer.picked(request, [everything.endpoints[given["to"]]])
