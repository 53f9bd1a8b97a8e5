"""Runs Reflectors: over a transport and a reader of their events, or as an Informer that keeps the objects."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, Protocol, Self, TypeVar

from adsum.tasks import cancel_and_wait
from discovery.kubernetes.api.refusal import explain_refusal, rule_for
from discovery.kubernetes.api.timings import Timings
from discovery.kubernetes.api.transport import ApiTransport, TransportError
from discovery.kubernetes.reflector.decoding import JsonDecoder
from discovery.kubernetes.reflector.recovery import (
    ObjectDeleted,
    ObjectsListed,
    ObjectUpdated,
    ReflectorEvent,
    SyncLost,
    SyncRestored,
)
from discovery.kubernetes.reflector.reflector import Get, Reflector, Wait

_log = logging.getLogger(__name__)

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


class Informer:
    """A `ReflectorReader`. It retries for ever; meanwhile the last known objects stay.

    `path`: `/apis/GROUP/VERSION/namespaces/NAMESPACE/RESOURCE`. `name`: only the object of that
    name. `quiet`: whoever reads `problem` logs it.

    `on_change()` is called after `objects`, `synced` or `problem` changed.
    """

    def __init__(
        self,
        transport: ApiTransport,
        path: str,
        on_change: Callable[[], object],
        timings: Timings | None = None,
        *,
        name: str = "",
        quiet: bool = False,
    ) -> None:
        self.synced = False
        """A list has arrived; before that `objects` is empty."""
        self.problem: str | None = None
        """Why `objects` may be out of date: on a 403 the rule that the Role lacks, on a 404 the missing CRD."""
        self.problem_code: int | None = None
        """The HTTP status behind `problem`; None without an answer."""
        self._objects: dict[str, dict[str, Any]] = {}
        self._transport = transport
        self._path = path
        self._rule, self._namespace = rule_for(path)
        self._on_change = on_change
        self._timings = timings or Timings()
        # A Role with resourceNames allows list and watch with this selector only (Kubernetes' page on RBAC)
        self._selection = {"fieldSelector": f"metadata.name={name}"} if name else {}
        self._quiet = quiet
        self._task: asyncio.Task[None] | None = None

    @property
    def objects(self) -> Mapping[str, dict[str, Any]]:
        """The objects by name, as in JSON. Not to be changed."""
        return self._objects

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name=f"informer {self._path}")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            await cancel_and_wait(self._task)

    async def apply(self, events: Iterable[ReflectorEvent[dict[str, Any]]]) -> None:
        changed = False
        for event in events:
            changed |= self._apply_one(event)
        if changed:
            self._on_change()

    def sync_restored(self, event: SyncRestored) -> None:
        if self._set_problem(None):
            self._on_change()

    async def _run(self) -> None:
        while True:
            reflector = Reflector(self._selection, JsonDecoder(), self._timings)
            try:
                await ReflectorLoop(reflector, self._transport, self._path, self._timings, self).run()
            except Exception as error:  # noqa: BLE001 -- a fault of ours or of `on_change` must not end the updates
                _log.error("cannot follow %s: unexpected error", self._path, exc_info=error)
                self.problem = f"unexpected error: {error!r}"
            await asyncio.sleep(self._timings.backoff[1])

    def _apply_one(self, event: ReflectorEvent[dict[str, Any]]) -> bool:
        """Returns whether anything changed."""
        self.problem_code = event.code if isinstance(event, SyncLost) else None
        if isinstance(event, SyncLost):
            return self._set_problem(self._explain(event))
        changed = self._set_problem(None)
        match event:
            case ObjectsListed(listed):
                before, was_synced = self._objects, self.synced
                self._objects = {found["metadata"]["name"]: found for found in listed}
                self.synced = True
                return changed or not was_synced or before != self._objects
            case ObjectUpdated(found):
                self._objects = self._objects | {found["metadata"]["name"]: found}
                return True
            case ObjectDeleted(name):
                self._objects = {key: kept for key, kept in self._objects.items() if key != name}
                return True
        return changed

    def _explain(self, lost: SyncLost) -> str:
        refused = explain_refusal(lost.code, lost.reason, self._rule, self._namespace)
        return f"{self._rule.qualified}: {refused}"

    def _set_problem(self, problem: str | None) -> bool:
        """Returns whether it changed; logs changes."""
        before, self.problem = self.problem, problem
        if before == problem:
            return False
        if self._quiet:
            return True
        if problem is not None:
            _log.warning("cannot follow %s", problem)
        else:
            _log.info("%s can be followed again", self._rule.qualified)
        return True
