"""What every test may use."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def eventually() -> Callable[..., Awaitable[float]]:
    """`await eventually(predicate, within=5)`: poll until true; returns the seconds it took, fails after `within`."""

    async def wait(predicate: Callable[[], object], within: float = 5.0) -> float:
        started = time.monotonic()
        while not predicate():
            waited = time.monotonic() - started
            assert waited < within, f"not within {within} s"
            await asyncio.sleep(0.005)
        return time.monotonic() - started

    return wait
