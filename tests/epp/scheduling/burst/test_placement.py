"""The prompts of a window are placed as the Go picker's source says, case by case (burst_placements.yaml)."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from epp.scheduling.burst.placement import PlacementRules, place

CASES = yaml.safe_load((Path(__file__).parent / "burst_placements.yaml").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_prompts_are_placed_as_in_the_go_picker(case: dict[str, Any]) -> None:
    prompts = [one["blocks"] for one in case["prompts"] for _ in range(one["count"])]
    expected = [to for one in case["prompts"] for to in one["to"] or [None] * one["count"]]
    assert place(prompts, case["running"], PlacementRules(**case.get("rules", {}))) == expected
