"""Interactive users: some all the time, and more of them in waves."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Self

from examples.demo.load import Exchange, Load

ALWAYS, MORE = 20, 30
QUIET, BUSY = 6.0, 6.0
"""Seconds without and with those that come in waves."""


class Users:
    """Entering starts them; leaving lets all of them finish."""

    def __init__(self, url: str, model: str) -> None:
        self._url = url
        self._model = model
        self._always = Load(url, model, ALWAYS)
        self._waves: list[Load] = []
        self._leaving = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._always.__aenter__()
        self._task = asyncio.create_task(self._come_and_go())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leaving.set()
        await self._always.stop()
        if self._task is not None:
            await self._task

    def exchanges(self) -> Iterator[Exchange]:
        """Everything asked so far."""
        for load in (self._always, *self._waves):
            yield from load.exchanges

    def under_way(self) -> int:
        """How many wait for the end of an answer right now."""
        return sum(exchange.ended is None for exchange in self.exchanges())

    async def _come_and_go(self) -> None:
        while not await self._left_within(QUIET):
            wave = Load(self._url, self._model, MORE)
            self._waves.append(wave)
            async with wave:
                await self._left_within(BUSY)

    async def _left_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._leaving.wait()
        return self._leaving.is_set()
