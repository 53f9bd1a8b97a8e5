"""What a picker would do with a request, without doing it."""

import json
import random
from typing import Any

import pytest

from epp.endpoints.load import Load
from epp.flow_control.controller import FlowController
from epp.request.model_rewrite import ModelRewrites, RewriteRule, RewriteTarget
from epp.request.rejection import Rejection
from epp.request.subset import Subset
from epp.scheduling.pick import Pick
from epp.scheduling.saturation import UtilizationDetector
from epp.scheduling.waiting import WaitingRequest
from tests.epp.decisions.test_decisions import CONFIGURATIONS, NOW, Picker, store_of
from tests.epp.flow_control.flow_settings import flow_settings

WEIGHTED_RANDOM = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: queue-scorer}
- {type: no-hit-lru-scorer}
- {type: weighted-random-picker}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: queue-scorer}, {pluginRef: no-hit-lru-scorer}, {pluginRef: weighted-random-picker}]
"""
HEADERS = {":method": "POST", ":path": "/v1/completions", "x-request-id": "explained"}


def body_of(prompt: str, model: str = "m") -> bytes:
    return json.dumps({"model": model, "prompt": prompt}).encode()


def explain(picker: Picker, body: bytes, subset: Subset | None = None, **headers: str) -> dict[str, Any]:
    sent = HEADERS | {name.replace("_", "-"): value for name, value in headers.items()}
    return picker.reader.describe(picker.director.explain(sent, body, subset, picker.now), 100)


@pytest.mark.parametrize("text", [*CONFIGURATIONS, WEIGHTED_RANDOM])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("whole_a_second", [0, 10**9])
def test_the_next_request_goes_where_explain_says_and_nothing_else_changes(
    text: str | None, seed: int, whole_a_second: int
) -> None:
    """Two pickers see the same; one is asked to explain between, the other is not. They must stay alike."""
    asked, left_alone = [Picker(store_of(8), text, whole_a_second=whole_a_second) for _ in range(2)]
    rng = random.Random(seed)
    waits: list[tuple[Pick, Pick]] = []
    for _ in range(60):
        numbers = [
            Load(waiting=rng.randrange(3), running=rng.randrange(9), kv_usage=rng.random()) for _ in range(8)
        ]
        scraped = [rng.random() < 0.5 for _ in range(8)]
        prompt = body_of(f"prompt {rng.randrange(4)} " * 200)
        for picker in (asked, left_alone):
            picker.now += 0.02
            for endpoint, load, is_scraped in zip(picker.store.endpoints, numbers, scraped, strict=True):
                if is_scraped:
                    picker.store.observe(endpoint, load, picker.now, 0.05)
        explained = [explain(asked, prompt) for _ in range(2)]
        explain(asked, body_of(f"never sent {rng.random()} " * 300))
        if rng.random() < 0.5:
            continue
        first = asked.director.direct(HEADERS, prompt, None, asked.now)
        second = left_alone.director.direct(HEADERS, prompt, None, left_alone.now)
        assert isinstance(first, Pick)
        assert isinstance(second, Pick)
        assert [one["choice"]["id"] for one in explained] == [first.endpoints[0].id] * 2
        assert first.endpoints[0].id == second.endpoints[0].id
        waits.append((first, second))
        if len(waits) > 6:
            for picker, pick in zip((asked, left_alone), waits.pop(0), strict=True):
                picker.director.picks.responded(pick, 200, picker.now)
                picker.director.picks.release(pick, picker.now)
    assert asked.decisions() == left_alone.decisions()
    assert asked.store.pool(NOW).numbers.tolist() == left_alone.store.pool(NOW).numbers.tolist()


def test_explain_says_who_would_wait_and_who_would_be_refused_and_nobody_is_counted() -> None:
    picker = Picker(store_of(1))
    settings = flow_settings(max_requests=1)
    detector = UtilizationDetector()
    controller = FlowController(settings, detector, picker.store.pool)
    picker.director.use_admission(controller)
    priorities = [band.priority for band in controller.bands]
    assert explain(picker, body_of("a"))["outcome"]["state"] == "would be sent"
    picker.store.observe(picker.store.endpoints[0], Load(waiting=500, running=9, kv_usage=1.0), NOW)
    picker.now += 1.0
    picker.store.observe(picker.store.endpoints[0], Load(waiting=500, running=9, kv_usage=1.0), picker.now)
    would_wait = explain(picker, body_of("a"), x_llm_d_inference_objective="unknown")
    assert would_wait["outcome"]["state"] == "would wait"
    assert would_wait["choice"] is not None, "if it went now"
    assert len(picker.director.waiting) == 0
    assert isinstance(picker.ask("b"), WaitingRequest)
    full = explain(picker, body_of("c"))
    assert (full["outcome"]["state"], full["refusal"]["status"]) == ("would be refused", 429)
    assert isinstance(picker.ask("c"), Rejection), "as it said"
    assert [band.priority for band in controller.bands] == priorities
    assert len(picker.director.waiting) == 1


def test_explain_says_why_a_request_would_be_refused() -> None:
    picker = Picker(store_of(1, w0={"model": {"name": "m"}}))
    unknown = explain(picker, body_of("a", model="other"))
    assert (unknown["refusal"]["code"], unknown["outcome"]["state"]) == (
        "model_not_found",
        "would be refused",
    )
    assert explain(picker, b"{")["refusal"]["status"] == 400
    assert explain(picker, body_of("a"), subset=Subset.of(["10.9.9.9"]))["refusal"]["status"] == 503
    assert len(picker.ring) == 0
    assert unknown["outcome"]["seconds"] is None


def test_explain_counts_no_rewrite_and_changes_no_chance() -> None:
    rewrites = ModelRewrites(
        [RewriteRule("rule", "2026-01-01T00:00:00Z", ("m",), (RewriteTarget("a"), RewriteTarget("b")))]
    )
    counted: list[tuple[str, str, str]] = []
    rewrites.on_decision = lambda *decision: counted.append(decision)
    picker = Picker(store_of(1), rewrites=rewrites)
    for _ in range(8):
        explained = explain(picker, body_of("a"))["request"]
        assert explained["asked_model"] == "m"
        assert not counted
        pick = picker.ask("a", x_request_id="r")
        assert isinstance(pick, Pick)
        assert pick.request.model == explained["model"]
        counted.clear()
