"""What holds of workers that fail at any speed of the machine: short runs of the benchmark, behind a real Envoy."""

from dataclasses import replace

import pytest

from benchmarks.failing.arms import ARMS
from benchmarks.failing.client import OK
from benchmarks.failing.run import FailingPlan, lost
from benchmarks.failing.scenarios import POISONED, SCENARIOS

PLAN = FailingPlan(seconds=5.0, rate=20.0, patience=60.0)
BOTH = next(arm for arm in ARMS if arm.outliers and arm.fallbacks)
DEFAULT = next(arm for arm in ARMS if arm.default)


async def test_a_killed_worker_costs_no_request_whose_answer_is_not_streamed() -> None:
    assert await lost(BOTH, SCENARIOS["SIGKILL"], replace(PLAN, streamed=0.0)) == {OK: 100}


async def test_a_killed_worker_costs_no_request_whose_answer_had_not_begun() -> None:
    """Envoy answers 502 where it has the head of an answer, and has not sent it on."""
    outcomes = await lost(BOTH, SCENARIOS["SIGKILL"], replace(PLAN, streamed=1.0))
    assert outcomes.keys() <= {OK, "cut after it began", "502 worker_failed"}
    assert outcomes[OK] > 80


@pytest.mark.parametrize(
    ("scenario", "workers"), [("500 to everything", 1), ("500 from half of the pool", 2)]
)
async def test_a_worker_that_answers_500_costs_a_few_requests(scenario: str, workers: int) -> None:
    """Those that make it an outlier, and those that were on their way by then."""
    outcomes = await lost(BOTH, SCENARIOS[scenario], PLAN)
    assert outcomes.keys() == {OK, "500 of the worker"}
    assert outcomes["500 of the worker"] < 25 * workers


@pytest.mark.parametrize(
    ("scenario", "most"),
    [("503 at once", 20), ("500 to every other request", 18), ("accepts, never answers", 40), (POISONED, 0)],
)
async def test_without_a_configuration_one_worker_of_three_costs_a_few_requests(
    scenario: str, most: int
) -> None:
    """Without ejection it costs more than 100, 30 and 60 of 240, and poison that ejects costs an ejection."""
    plan = replace(PLAN, seconds=12.0, patience=15.0, workers=3)
    outcomes = await lost(DEFAULT, SCENARIOS[scenario], plan)
    assert outcomes.total() - outcomes[OK] <= most, outcomes
