"""For tests in which something has to be done before a lease or a deadline ends: tried again with more time.

A machine that stands still for seconds makes any such time too short. A test says how long it asks for and what has to
be done by when; one that was too late has shown nothing, and begins anew with a longer time.
"""

import asyncio
import functools
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from adsum.tasks import cancel_and_wait

Clock = Callable[[], Awaitable[int]]
LONGEST_MS = 20_000


class TooLateError(Exception):
    """What had to be done by then was not."""


@asynccontextmanager
async def by(at_ms: int, now_ms: Clock) -> AsyncIterator[None]:
    """What stands inside counts only if it ends before that time; otherwise TooLateError, whatever it found."""
    try:
        yield
    except (Exception, pytest.fail.Exception) as error:
        if await now_ms() >= at_ms:
            raise TooLateError from error
        raise
    if await now_ms() >= at_ms:
        raise TooLateError


def with_more_time(ms: int) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., Awaitable[None]]]:
    """Calls the test with its argument `ms`, and again with ten and a hundred times as much if it was too late.

    But with no more than `LONGEST_MS`: some of our tests need three times as long, and pytest ends each after 180 s.
    """

    def decorated(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        @functools.wraps(test)
        async def run(**given: Any) -> None:
            for times in (1, 10):
                with suppress(TooLateError):
                    await test(**given, ms=min(ms * times, LONGEST_MS))
                    return
            await test(**given, ms=min(ms * 100, LONGEST_MS))

        seen = inspect.signature(test)
        wanted = [parameter for name, parameter in seen.parameters.items() if name != "ms"]
        run.__signature__ = seen.replace(parameters=wanted)  # type: ignore[attr-defined]  # what pytest reads
        return run

    return decorated


@asynccontextmanager
async def without_a_gap(seconds: float, now_ms: Clock) -> AsyncIterator[None]:
    """TooLateError if this process or the broker stood still for so long while inside."""
    longest, before = 0.0, time.monotonic()

    async def look() -> None:
        nonlocal longest, before
        while True:
            await now_ms()
            now = time.monotonic()
            longest, before = max(longest, now - before), now
            await asyncio.sleep(0.01)

    def stood_still() -> bool:
        return max(longest, time.monotonic() - before) >= seconds

    looking = asyncio.create_task(look())
    try:
        yield
        late = stood_still()
    except (Exception, pytest.fail.Exception) as error:
        if stood_still():
            raise TooLateError from error
        raise
    finally:
        await cancel_and_wait(looking)
    if late:
        raise TooLateError
