"""The policies decide as the Go picker's do; go_policies.yaml has its cases."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from epp.flow_control.fairness import RoundRobin
from epp.flow_control.flow_queue import QueuedRequest
from epp.flow_control.orderings import EarliestDeadlineFirst, OrderingPolicy, SloDeadline
from epp.flow_control.usage_limits import PriorityHoldback, SoftReflectiveCeiling
from epp.request.inference_request import InferenceRequest

CASES: dict[str, list[Any]] = yaml.load(
    (Path(__file__).parent / "go_policies.yaml").read_text(), yaml.CSafeLoader
)


@pytest.mark.parametrize("case", CASES["holdback"], ids=str)
def test_lower_priorities_are_held_back(case: Any) -> None:
    policy = PriorityHoldback.model_construct(
        min_ceiling=case["min"], max_ceiling=case["max"], domain=case["domain"]
    )
    assert policy.ceilings(0.5, case["priorities"]) == pytest.approx(case["ceilings"])


@pytest.mark.parametrize("case", CASES["reflective"], ids=str)
def test_ceilings_reflect_the_saturation(case: Any) -> None:
    policy = SoftReflectiveCeiling()
    for call in case["calls"]:
        assert policy.ceilings(call["saturation"], call["priorities"]) == call["ceilings"]


def test_no_priority_opens_without_those_above_it() -> None:
    """The dispatch stops at the first priority that is closed."""
    policy = SoftReflectiveCeiling()
    opened = [0, 0, 0]
    for turn in range(300):
        ceilings = policy.ceilings(0.6 if turn < 3 else 0.5 + turn / 700.0, [100, 0, -50])
        assert list(ceilings) == sorted(ceilings, reverse=True)
        opened = [count + int(one) for count, one in zip(opened, ceilings, strict=True)]
    assert opened[0] == 300
    assert min(opened) > 0, "one starves"


def queued(
    arrived: float, ttl: float = 0.0, ttft: str | None = None, older_ttft: str | None = None
) -> QueuedRequest:
    named = {"x-llm-d-slo-ttft-ms": ttft, "x-slo-ttft-ms": older_ttft}
    headers = {name: value for name, value in named.items() if value is not None}
    request = InferenceRequest("id", "/v1/completions", headers)
    return QueuedRequest(request, arrived, ttl, sequence=int(arrived * 1000))


def goes_first(policy: OrderingPolicy, case: Any) -> bool:
    """The rank counts, and among equal ones the order of arrival."""
    first, then = queued(**case["first"]), queued(**case["then"])
    return (policy.rank(first), first.sequence) < (policy.rank(then), then.sequence)


@pytest.mark.parametrize("case", CASES["deadlines"], ids=str)
def test_the_earliest_deadline_goes_first(case: Any) -> None:
    assert goes_first(EarliestDeadlineFirst(), case)


@pytest.mark.parametrize("case", CASES["slo_deadlines"], ids=str)
def test_the_first_token_that_is_due_first_goes_first(case: Any) -> None:
    assert goes_first(SloDeadline(), case)


@pytest.mark.parametrize("text", ["9" * 60, "9" * 10_000, "", "0x10", "१००", "1_000", "NaN", "1e3"])
def test_a_header_that_makes_no_sense_is_no_deadline(text: str) -> None:
    assert SloDeadline().rank(queued(1.0, ttft=text)) == float("inf")


class FlowOf:
    """A flow in which requests wait, or none."""

    def __init__(self, fairness_id: str) -> None:
        self.fairness_id = fairness_id
        self.first: QueuedRequest | None = queued(0.0)

    def __len__(self) -> int:
        return int(self.first is not None)


@pytest.mark.parametrize("case", CASES["turns"], ids=str)
def test_flows_take_turns(case: Any) -> None:
    selector = RoundRobin().selector()
    flows: dict[str, FlowOf] = {}
    for step in case["steps"]:
        for name in step.get("leave", ()):
            flow = flows.pop(name)
            flow.first = None
            selector.changed(flow)
        for name in step.get("wait", ()):
            flows[name] = FlowOf(name)
            selector.changed(flows[name])
        selected = selector.select()
        assert selected is selector.select()
        assert (None if selected is None else selected.fairness_id) == step.get("goes")
        if selected is not None:
            assert selected.first is not None
            selector.dispatched(selected, selected.first)
            selector.changed(selected)  # its next request is first now


def test_each_flow_gets_its_share_whatever_the_others_send() -> None:
    selector = RoundRobin().selector()
    flows = [FlowOf(name) for name in ("a", "b", "c")]
    for flow in flows * 5:
        selector.changed(flow)
    gone = []
    for _ in range(9):
        selected = selector.select()
        assert selected is not None
        gone.append(selected.fairness_id)
        selector.dispatched(selected, queued(0.0))
    assert gone == ["a", "b", "c"] * 3
