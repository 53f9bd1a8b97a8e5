"""Generates interactive load: some users all the time, and waves of more."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Self

from examples.demo.load import Exchange, LoadGenerator

STEADY_USERS, WAVE_USERS = 20, 30
QUIET_SECONDS, WAVE_SECONDS = 6.0, 6.0
"""Seconds without and with the users of a wave."""


class Users:
    """Entering starts the users; leaving waits for their running requests."""

    def __init__(self, url: str, model: str) -> None:
        self._url = url
        self._model = model
        self._steady = LoadGenerator(url, model, STEADY_USERS)
        self._waves: list[LoadGenerator] = []
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._steady.__aenter__()
        self._task = asyncio.create_task(self._run_waves())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        await self._steady.stop()
        if self._task is not None:
            await self._task

    def exchanges(self) -> Iterator[Exchange]:
        for load in (self._steady, *self._waves):
            yield from load.exchanges

    def in_flight(self) -> int:
        """The number of requests whose response is not complete."""
        return sum(exchange.ended is None for exchange in self.exchanges())

    async def _run_waves(self) -> None:
        while not await self._stopped_within(QUIET_SECONDS):
            wave = LoadGenerator(self._url, self._model, WAVE_USERS)
            self._waves.append(wave)
            async with wave:
                await self._stopped_within(WAVE_SECONDS)

    async def _stopped_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        return self._stopping.is_set()
