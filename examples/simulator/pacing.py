"""Runs the queueing model against the clock and hands each request its tokens."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from examples.simulator.queueing import Emitted, Load, Queueing, Totals, Work


class TokenStream:
    """The tokens of one request, as they are emitted."""

    def __init__(self) -> None:
        self._tokens: list[Emitted] = []
        self._arrived = asyncio.Event()

    async def receive(self) -> list[Emitted]:
        """All tokens since the last call, at least one. There are none after the one that says `finished`."""
        await self._arrived.wait()
        self._arrived.clear()
        tokens, self._tokens = self._tokens, []
        return tokens

    def put(self, token: Emitted) -> None:
        self._tokens.append(token)
        self._arrived.set()


class Pacer:
    """A Queueing in real time, `speed` times as fast. Only `run` moves it: without, everybody waits."""

    def __init__(self, queueing: Queueing, *, speed: float = 1.0) -> None:
        if speed <= 0:
            raise ValueError(f"speed must be more than 0, not {speed}")
        self._queueing = queueing
        self._speed = speed
        self._changed = asyncio.Event()
        self._streams: dict[int, TokenStream] = {}
        self._last_key = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._changed.clear()
            now = self._now()
            for token in self._queueing.advance(now):
                if (stream := self._streams.get(token.key)) is not None:
                    stream.put(token)
            wake_at = self._queueing.next_event(now)
            await self._pause(None if wake_at is None else (wake_at - self._now()) / self._speed)

    @contextmanager
    def generate(self, work: Work) -> Iterator[TokenStream]:
        """The request runs inside the block; leaving it early gives up its place. ValueError: it can never run."""
        self._last_key += 1
        key = self._last_key
        self._queueing.submit(key, work)
        self._streams[key] = stream = TokenStream()
        self._changed.set()
        try:
            yield stream
        finally:
            del self._streams[key]
            self._queueing.abandon(key)
            self._changed.set()

    def load(self) -> Load:
        return self._queueing.load(self._now())

    @property
    def totals(self) -> Totals:
        return self._queueing.totals

    def _now(self) -> float:
        return asyncio.get_running_loop().time() * self._speed

    async def _pause(self, seconds: float | None) -> None:
        """At least one turn of the loop, so that a machine slower than its simulation still answers."""
        await asyncio.sleep(0)
        with anyio.move_on_after(seconds):
            await self._changed.wait()
