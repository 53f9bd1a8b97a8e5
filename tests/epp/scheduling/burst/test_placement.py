"""The prompts of a window are placed as the Go picker's source says, case by case (burst_placements.yaml)."""

import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from epp.scheduling.burst.placement import PlacementRules, place

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
def test_ten_times_the_prompts_take_no_hundred_times_as_long(rules: PlacementRules) -> None:
    assert seconds(4000, 4, rules) < 25 * seconds(400, 4, rules)


@pytest.mark.parametrize("rules", ALIKE)
def test_a_hundred_times_the_endpoints_take_no_ten_times_as_long(rules: PlacementRules) -> None:
    assert seconds(200, 2000, rules) < 10 * seconds(200, 20, rules)
