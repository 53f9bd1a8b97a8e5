"""A thousand workers hold up nobody: ten times the figures that `python -m benchmarks events` and `pool-states` aim at."""

import statistics

import pytest

from benchmarks.event_storm import measure
from benchmarks.pool_states import STATES, StatedPool

_LONGEST_STALL = 10 * 0.020
_PICK = 10 * 0.005


@pytest.mark.usefixtures("frozen_heap")
async def test_a_storm_of_events_holds_up_no_pick() -> None:
    storm = await measure(adapters=32, changes=5)
    assert storm.longest_stall <= _LONGEST_STALL
    assert storm.pick <= _PICK


@pytest.mark.parametrize("state", STATES)
def test_a_pick_costs_the_same_in_a_large_pool(state: str) -> None:
    few, many = (statistics.median(STATES[state](pool, 100)) for pool in (StatedPool(20), StatedPool(1000)))
    assert many <= 5 * few
