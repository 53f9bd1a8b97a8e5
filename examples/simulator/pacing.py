"""Advances the scheduler model in real time and delivers each request's tokens."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio

from examples.simulator.scheduler_model import Emitted, Load, SchedulerModel, Totals, Work


class TokenStream:
    """The tokens of one request, as they are emitted. `key`: for `Pacer.release`. `kept`: the blocks that it holds stay until then."""

    def __init__(self, key: int) -> None:
        self.key = key
        self.kept = False
        self._tokens: list[Emitted] = []
        self._arrived = asyncio.Event()

    async def receive(self) -> list[Emitted]:
        """All tokens since the last call, at least one. The last token of a request has `finished` set."""
        await self._arrived.wait()
        self._arrived.clear()
        tokens, self._tokens = self._tokens, []
        return tokens

    def put(self, token: Emitted) -> None:
        self._tokens.append(token)
        self._arrived.set()


class Pacer:
    """Runs a `SchedulerModel` in real time, `speed` times as fast. Tokens come only while `run` runs.

    `advanced`: called after each step, before its tokens are delivered.
    """

    def __init__(
        self,
        scheduler_model: SchedulerModel,
        speed: float = 1.0,
        advanced: Callable[[], None] = lambda: None,
    ) -> None:
        if speed <= 0:
            raise ValueError(f"speed must be more than 0, not {speed}")
        self._scheduler = scheduler_model
        self._speed = speed
        self._advanced = advanced
        self._changed = asyncio.Event()
        self._streams: dict[int, TokenStream] = {}
        self._last_key = 0

    async def run(self) -> None:
        """Advance the model until cancelled."""
        while True:
            self._changed.clear()
            now = self._now()
            emitted = self._scheduler.advance(now)
            self._advanced()
            for token in emitted:
                if (stream := self._streams.get(token.key)) is not None:
                    stream.put(token)
            wake_at = self._scheduler.next_event(now)
            await self._wait(None if wake_at is None else (wake_at - self._now()) / self._speed)

    @contextmanager
    def generate(self, work: Work) -> Iterator[TokenStream]:
        """Run a request inside the block; leaving it early aborts the request. ValueError for one that can never run."""
        self._last_key += 1
        key = self._last_key
        self._scheduler.submit(key, work)
        self._streams[key] = stream = TokenStream(key)
        self._changed.set()
        try:
            yield stream
        finally:
            del self._streams[key]
            if not stream.kept:
                self._scheduler.abort(key)
            self._changed.set()

    def release(self, key: int) -> None:
        """Free the blocks that a request held for another worker."""
        self._scheduler.release(key)
        self._changed.set()

    def real(self, seconds: float) -> float:
        """How long so many simulated seconds take."""
        return seconds / self._speed

    async def pass_seconds(self, seconds: float) -> None:
        """Wait so many simulated seconds."""
        await asyncio.sleep(self.real(seconds))

    def load(self) -> Load:
        return self._scheduler.load(self._now())

    @property
    def totals(self) -> Totals:
        return self._scheduler.totals

    def _now(self) -> float:
        return asyncio.get_running_loop().time() * self._speed

    async def _wait(self, seconds: float | None) -> None:
        """Wait for a new request or `seconds`, and yield to the loop at least once: a simulation that is slower than its
        clock would otherwise starve the sockets.
        """
        await asyncio.sleep(0)
        with anyio.move_on_after(seconds):
            await self._changed.wait()
