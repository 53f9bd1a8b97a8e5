"""Runs a Reflector over a transport: sends the requests that it asks for, passes it the answers as they arrive."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from discovery.kubernetes.reflector import Get, Reflector, Wait
from discovery.kubernetes.reflector_events import ReflectorEvent, SyncRestored
from discovery.kubernetes.timings import Timings
from discovery.kubernetes.transport import ApiTransport, TransportError

T = TypeVar("T")


class ReflectorReader(Protocol[T]):
    """Gets a reflector's events, in order."""

    async def apply(self, events: Iterable[ReflectorEvent[T]]) -> None:
        """Events that came together. What it raises ends the loop."""
        ...

    def sync_restored(self, event: SyncRestored) -> None:
        """`apply` for a timer, which cannot await."""
        ...


class ReflectorLoop(Generic[T]):
    """One request at a time."""

    def __init__(
        self,
        reflector: Reflector[T],
        transport: ApiTransport,
        path: str,
        timings: Timings,
        reader: ReflectorReader[T],
    ) -> None:
        self._reflector = reflector
        self._transport = transport
        self._path = path
        self._timings = timings
        self._clock = timings.clock
        self._reader = reader

    async def run(self) -> None:
        """Runs until it is cancelled. Raises what `ReflectorReader.apply` raises, and nothing else."""
        while True:
            match self._reflector.next_step(self._clock()):
                case Wait(until, probe_connection=False):
                    await asyncio.sleep(until - self._clock())
                case Wait(until):
                    await self._wait_for_connection(until)
                case Get() as get:
                    await self._request(get)

    async def _wait_for_connection(self, until: float) -> None:
        # A TCP connection costs the server far less than a list, and shows a restart within a second: the backoff alone
        # may take 30 s
        while (left := until - self._clock()) > 0:
            await asyncio.sleep(min(left, self._timings.uniform(*self._timings.connect_probe_interval)))
            if self._clock() < until and await self._transport.can_connect():
                self._reflector.connection_possible(self._clock())
                return

    async def _request(self, get: Get) -> None:
        reflector = self._reflector
        try:
            async with asyncio.timeout_at(self._loop_time(reflector.deadline)) as timeout:
                finished = await self._read_response(get, timeout)
        except TransportError as error:
            lost = reflector.request_failed(str(error), self._clock(), connect_failed=error.connect_failed)
            await self._reader.apply(lost)
        except TimeoutError:
            await self._reader.apply(
                reflector.request_failed("the server stopped sending before its answer ended", self._clock())
            )
        else:
            if not finished:
                await self._reader.apply(reflector.eof_received(self._clock()))

    async def _read_response(self, get: Get, timeout: asyncio.Timeout) -> bool:
        """Returns whether the reflector needs no more of the answer; False: the body has ended."""
        reflector = self._reflector
        async with self._transport.open(self._path, get.params) as response:
            reflector.headers_received(response.status, response.headers, self._clock())
            timeout.reschedule(self._loop_time(reflector.deadline))
            with self._timer():
                async for chunk in response.chunks:
                    await self._reader.apply(reflector.data_received(chunk, self._clock()))
                    if reflector.finished:
                        return True
                    timeout.reschedule(self._loop_time(reflector.deadline))
        return False

    @contextmanager
    def _timer(self) -> Iterator[None]:
        """A quiet watch sends no bytes that could wake us: a timer calls the reflector."""
        due = self._reflector.timer_at
        if due is None:
            yield
            return
        timer = asyncio.get_running_loop().call_at(self._loop_time(due), self._timer_expired)
        try:
            yield
        finally:
            timer.cancel()

    def _timer_expired(self) -> None:
        for restored in self._reflector.timer_expired(self._clock()):
            self._reader.sync_restored(restored)

    def _loop_time(self, moment: float) -> float:
        """A moment of `Timings.clock` on the event loop's clock."""
        return asyncio.get_running_loop().time() + moment - self._clock()
