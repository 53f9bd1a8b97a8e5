"""Timeouts that share timers end like `asyncio.timeout`."""

import asyncio
import time

import pytest

from dispatcher.delivery.answer_limits import MIN_COARSE, CoarseTimeouts


@pytest.mark.parametrize("seconds", [0.2, MIN_COARSE])
async def test_it_ends_in_time_and_never_too_early(seconds: float) -> None:
    begun = time.monotonic()
    async with asyncio.timeout(90):
        with pytest.raises(TimeoutError), CoarseTimeouts().timeout(seconds):
            await asyncio.Event().wait()
    assert seconds <= time.monotonic() - begun


async def test_many_that_end_together_all_end() -> None:
    timeouts, ended = CoarseTimeouts(), 0

    async def wait(seconds: float) -> None:
        nonlocal ended
        with pytest.raises(TimeoutError), timeouts.timeout(seconds):
            await asyncio.Event().wait()
        ended += 1

    async with asyncio.timeout(90):
        await asyncio.gather(*(wait(MIN_COARSE + number / 1000) for number in range(200)))
    assert ended == 200


async def test_who_is_done_is_left_alone_and_nothing_is_kept_of_him() -> None:
    timeouts = CoarseTimeouts()
    for _ in range(100):
        with timeouts.timeout(MIN_COARSE):
            pass
    with pytest.raises(KeyError), timeouts.timeout(MIN_COARSE):
        raise KeyError
    assert (timeouts._due, timeouts._timers) == ({}, {})


async def test_a_cancellation_is_no_timeout() -> None:
    timeouts = CoarseTimeouts()

    async def wait() -> None:
        with timeouts.timeout(60):
            await asyncio.Event().wait()

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert timeouts._due == {}
