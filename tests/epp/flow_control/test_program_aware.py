"""Programs that got least go first; go_policies.yaml has the Go picker's cases."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from epp.flow_control.flow_queue import QueuedRequest
from epp.flow_control.program_aware import ProgramAware, ProgramAwareParameters, program_metrics
from epp.request.inference_request import InferenceRequest

CASES: dict[str, list[Any]] = yaml.load(
    (Path(__file__).parent / "go_policies.yaml").read_text(), yaml.CSafeLoader
)


class Clock:
    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def request(fairness_id: str, tokens: int = 0) -> InferenceRequest:
    made = InferenceRequest("id", "/v1/completions", {})
    made.fairness_id, made.prompt_size = fairness_id, 4 * tokens
    return made


class FlowOf:
    """A flow whose first request came at a time."""

    def __init__(self, fairness_id: str, came: float) -> None:
        self.fairness_id = fairness_id
        self.first: QueuedRequest | None = QueuedRequest(request(fairness_id), came, 60.0, 1)

    def __len__(self) -> int:
        return int(self.first is not None)


@pytest.mark.parametrize("case", CASES["programs"], ids=str)
def test_who_goes_next(case: Any) -> None:
    service, wait = case["weights"]
    clock = Clock()
    settings = ProgramAwareParameters.model_construct(
        las_weight_service=service, las_weight_head_wait=wait, las_half_life_seconds=case["half_life"]
    )
    policy = ProgramAware(settings, clock)
    for name, (tokens, at) in case["service"].items():
        clock.now = at
        policy.picked(request(name, tokens), ())
    clock.now = 100.0
    selector = policy.selector()
    for name, came in case["came"].items():
        selector.changed(FlowOf(name, came))
    selected = selector.select()
    assert (None if selected is None else selected.fairness_id) == case["goes"]
    assert selected is selector.select()


@pytest.mark.parametrize("case", CASES["attained"], ids=str)
def test_what_a_program_got_counts_less_with_time(case: Any) -> None:
    clock = Clock()
    policy = ProgramAware(
        ProgramAwareParameters.model_construct(las_half_life_seconds=case["half_life"]), clock
    )
    policy.picked(request("alpha", 100), ())
    clock.now += case["elapsed"]
    policy.used(request("alpha"), case["more"], None)
    assert policy.attained() == {"alpha": pytest.approx(case["makes"])}


def test_an_answer_counts_twice_and_corrects_the_guess_of_its_prompt() -> None:
    policy = ProgramAware(ProgramAwareParameters(), Clock())
    sent = request("alpha", 80)
    policy.picked(sent, ())
    assert policy.attained() == {"alpha": 80}
    policy.used(sent, 100, 50)
    assert policy.attained() == {"alpha": 200}
    policy.used(sent, None, None)
    assert policy.attained() == {"alpha": 200}


def test_a_program_that_sends_more_waits_for_the_others() -> None:
    """One program has long prompts, two have short ones: each gets the same tokens, not the same number of requests."""
    clock = Clock()
    policy = ProgramAware(
        ProgramAwareParameters.model_construct(las_half_life_seconds=0.0, las_weight_head_wait=0.0), clock
    )
    selector = policy.selector()
    sizes = {"long": 1000, "short": 100, "other": 100}
    for name in sizes:
        selector.changed(FlowOf(name, 100.0))
    got = dict.fromkeys(sizes, 0)
    for _ in range(210):
        selected = selector.select()
        assert selected is not None
        name = selected.fairness_id
        got[name] += sizes[name]
        assert selected.first is not None
        selector.dispatched(selected, selected.first)
        policy.picked(request(name, sizes[name]), ())
    assert max(got.values()) - min(got.values()) <= 1000
    assert min(got.values()) > 9000


def test_a_thousand_programs_that_always_wait_do_not_starve_the_one_after_them() -> None:
    clock = Clock()
    policy = ProgramAware(ProgramAwareParameters(), clock)
    selector = policy.selector()
    for number in range(1000):
        selector.changed(FlowOf(f"{number}", clock.now))
    late = FlowOf("late", clock.now)
    selector.changed(late)
    for _ in range(1001):
        clock.now += 0.01
        selected = selector.select()
        if selected is late:
            return
        assert selected is not None
        assert selected.first is not None
        selector.dispatched(selected, selected.first)
        policy.picked(request(selected.fairness_id, 10), ())
        selector.changed(FlowOf(selected.fairness_id, clock.now))
    pytest.fail("others got two turns before it got one")


def test_programs_are_forgotten() -> None:
    clock = Clock()
    policy = ProgramAware(ProgramAwareParameters.model_construct(eviction_ttl_seconds=10.0), clock)
    for number in range(5000):
        policy.picked(request(f"{number}", 1), ())
    assert len(policy.programs) == 1000
    assert next(iter(policy.programs)) == "4000"
    clock.now += 11.0
    policy.picked(request("again", 1), ())
    assert "4000" not in policy.programs


def test_the_metrics_tell_how_fair_it_is() -> None:
    clock = Clock()
    policy = ProgramAware(ProgramAwareParameters.model_construct(las_half_life_seconds=0.0), clock)
    for name, waited in (("a", 1.0), ("b", 3.0)):
        policy.waited(name, clock.now - waited)
        policy.picked(request(name, 50), ())
    policy.picked(request("b", 50), ())  # at once
    found = {
        (family.name.removeprefix("llm_d_epp_program_aware_"), *sample.labels.values()): sample.value
        for family in program_metrics([policy])
        for sample in family.samples
    }
    assert found == {
        ("attained_service_tokens", "a"): 50,
        ("attained_service_tokens", "b"): 100,
        ("avg_wait_time_milliseconds", "a"): 1000,
        ("avg_wait_time_milliseconds", "b"): 1500,
        ("jains_fairness_index",): pytest.approx(2500**2 / (2 * (1000**2 + 1500**2))),
    }
