"""Drives a Reflector over a Transport: sends what it asks, feeds it what comes."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from discovery.kubernetes.reflector import Get, Reflector, Wait
from discovery.kubernetes.snapshot_publisher import Following
from discovery.kubernetes.timings import Timings
from discovery.kubernetes.transport import ApiTransport, TransportError


class Drive:
    """One reflector's requests, one after the other; `following` hears the news in order."""

    def __init__(
        self, reflector: Reflector, transport: ApiTransport, path: str, timings: Timings, following: Following
    ) -> None:
        self._reflector = reflector
        self._transport = transport
        self._path = path
        self._timings = timings
        self._clock = timings.clock
        self._following = following

    async def run(self) -> None:
        """Until cancelled; raises what `Following.tell` raises and nothing else."""
        while True:
            match self._reflector.next(self._clock()):
                case Wait(until, knock=False):
                    await asyncio.sleep(until - self._clock())
                case Wait(until):
                    await self._knock(until)
                case Get() as get:
                    await self._exchange(get)

    async def _knock(self, until: float) -> None:
        """Wait, but no longer than until the server can be connected to."""
        while (left := until - self._clock()) > 0:
            await asyncio.sleep(min(left, self._timings.uniform(*self._timings.knock)))
            if self._clock() < until and await self._transport.reachable():
                self._reflector.reached(self._clock())
                return

    async def _exchange(self, get: Get) -> None:
        reflector = self._reflector
        try:
            async with asyncio.timeout_at(self._on_loop(reflector.deadline)) as limit:
                finished = await self._read(get, limit)
        except TransportError as error:
            lost = reflector.broke(str(error), self._clock(), unreachable=error.unreachable)
            await self._following.tell(lost)
        except TimeoutError:
            await self._following.tell(
                reflector.broke("the server went silent in the middle of its answer", self._clock())
            )
        else:
            if not finished:
                await self._following.tell(reflector.ended(self._clock()))

    async def _read(self, get: Get, limit: asyncio.Timeout) -> bool:
        """Whether the reflector has had enough before the end."""
        reflector = self._reflector
        async with self._transport.open(self._path, get.params) as response:
            reflector.opened(response.status, response.headers, self._clock())
            limit.reschedule(self._on_loop(reflector.deadline))
            with self._ticking():
                async for chunk in response.chunks:
                    await self._following.tell(reflector.received(chunk, self._clock()))
                    if reflector.finished:
                        return True
                    limit.reschedule(self._on_loop(reflector.deadline))
        return False

    @contextmanager
    def _ticking(self) -> Iterator[None]:
        due = self._reflector.tick_at
        if due is None:
            yield
            return
        timer = asyncio.get_running_loop().call_at(self._on_loop(due), self._tick)
        try:
            yield
        finally:
            timer.cancel()

    def _tick(self) -> None:
        for contact in self._reflector.tick(self._clock()):
            self._following.hear(contact)

    def _on_loop(self, moment: float) -> float:
        return asyncio.get_running_loop().time() + moment - self._clock()
