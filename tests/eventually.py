"""Polling for tests, long enough for a machine that is busy with other work."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

Answer = TypeVar("Answer")


async def eventually(condition: Callable[[], object], within: float = 90.0) -> float:
    """Polls the condition, a function or a coroutine function, until it is true; returns the seconds that it took.

    Fails after `within` seconds: a bound for hangs, not a figure; figures are in benchmarks/README.md.
    """
    started = time.monotonic()
    while True:
        met = condition()
        if inspect.isawaitable(met):
            met = await met
        waited = time.monotonic() - started
        if met:
            return waited
        assert waited < within, f"not within {within} s"
        await asyncio.sleep(0.005)


async def asked_until(
    ask: Callable[[], Awaitable[Answer]], is_so: Callable[[Answer], object], within: float = 90.0
) -> Answer:
    """Asks again until the answer is so, and returns that answer."""
    answers: list[Answer] = []

    async def is_found() -> object:
        answers[:] = [await ask()]
        return is_so(answers[0])

    await eventually(is_found, within)
    return answers[0]
