"""tests.in_time itself: a test that came too late has shown nothing, whatever it found."""

import asyncio
import time

import pytest

from tests.in_time import TooLateError, by, with_more_time, without_a_gap


async def clock() -> int:
    return int(time.time() * 1000)


async def stands_still() -> None:
    async with without_a_gap(0.2, clock):
        await asyncio.sleep(0.05)
        time.sleep(0.5)  # noqa: ASYNC251  # what is to be noticed


async def misses_an_error() -> None:
    async with by(0, clock):
        with pytest.raises(ValueError, match="never"):
            pass


async def test_a_gap_that_is_still_open_counts() -> None:
    with pytest.raises(TooLateError):
        await stands_still()


async def test_what_was_missed_too_late_was_too_late() -> None:
    with pytest.raises(TooLateError):
        await misses_an_error()


@pytest.mark.parametrize(("ms", "given"), [(100, [100, 1_000, 10_000]), (3_000, [3_000, 20_000, 20_000])])
async def test_all_tries_together_end_before_pytest_ends_the_test(ms: int, given: list[int]) -> None:
    tried: list[int] = []

    @with_more_time(ms)
    async def is_late(ms: int) -> None:
        tried.append(ms)
        raise TooLateError

    with pytest.raises(TooLateError):
        await is_late()
    assert tried == given
