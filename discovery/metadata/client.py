"""Fetches a worker's metadata: conditional GETs (RFC 9110 §13.1.2) that the worker may hold (RFC 7240, `Prefer: wait`)."""

import asyncio
import json
import ssl
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import tenacity

from adsum.command_line import program
from adsum.http1.response import HttpResponse
from discovery.errors import MetadataUnavailableError, WorkerUnreachableError
from discovery.instance import HEALTH_PATH, METADATA_PATH, Instance
from discovery.metadata.connections import WorkerConnections
from discovery.metadata.document import (
    NO_DOCUMENT,
    MetadataDocument,
    read_document,
    read_metadata,
    read_ready,
    verify_identity,
)
from discovery.metadata.silence import SilenceTimings, silence_timings

_NO_DOCUMENT_STATUSES: Final = (404, 405, 501)
_CACHE_SIZE: Final = 4096
"""Documents kept for `read`, whose ETags make its next GET conditional."""

_MOST_HELD: Final = 2048
_RETRY_SHARE: Final = 4
"""One slot in so many may be used by retries."""
_SLOW_AFTER: Final = 0.25
"""Seconds after which a fetch without an answer gives its slot to the next one."""
_MAX_SLOW: Final = 1024
"""Slow fetches that may run beside those with a slot: each costs a descriptor. Further ones keep their slots."""


@dataclass(frozen=True, slots=True)
class MetadataAnswer:
    """The document of one answer. `held`: the worker holds GETs (`Preference-Applied: wait`, RFC 7240 §3)."""

    document: MetadataDocument
    held: bool = False


class MetadataClient:
    """GETs of `/metadata` from many workers. Must be closed. Follows no redirects and uses no proxy.

    At most `concurrency` fetches begin at once, of which a quarter may be retries. At most `_MOST_HELD` GETs are held; they
    do not count as fetches. `timeout`: seconds for the answer of a worker that has not answered before. `silence` None:
    from `$ADSUM_SILENT_AFTER`.
    """

    def __init__(
        self,
        *,
        ssl_context: ssl.SSLContext | None = None,
        token: str | None = None,
        timeout: float = 5.0,
        silence: SilenceTimings | None = None,
        concurrency: int = 128,
    ) -> None:
        self.silence = silence or silence_timings(None)
        self.timeout = timeout
        self.scheme = "https" if ssl_context else "http"
        self._connections = WorkerConnections(ssl_context=ssl_context, token=token)
        self._limiter = FetchLimiter(concurrency)
        self._free_holds = _MOST_HELD
        self._cache: OrderedDict[tuple[str, str, str], MetadataDocument] = OrderedDict()

    async def read(self, instance: Instance) -> dict[str, Any]:
        """The metadata now, by a conditional GET; three attempts if the connection fails.

        Raises `MetadataUnavailableError`. `Instance.metadata` calls this.
        """
        # never the ETag of another life: a plain server may count its ETags from the start again
        identity = (instance.id, instance.incarnation, instance.authority)
        async for attempt in tenacity.AsyncRetrying(
            # any other error is an answer, and the next answer would be the same
            retry=tenacity.retry_if_exception_type(WorkerUnreachableError),
            stop=tenacity.stop_after_attempt(3),
            wait=tenacity.wait_random_exponential(multiplier=0.05, max=0.5),
            reraise=True,
        ):
            with attempt:
                answer = await self.fetch(instance, self._cache.get(identity))
        self._cache[identity] = answer.document
        self._cache.move_to_end(identity)
        if len(self._cache) > _CACHE_SIZE:
            self._cache.popitem(last=False)
        return read_metadata(instance, answer.document)

    async def fetch(
        self,
        instance: Instance,
        known: MetadataDocument | None = None,
        *,
        retry: bool = False,
        timeout: float | None = None,
        connected: Callable[[], object] | None = None,
    ) -> MetadataAnswer:
        """One GET that is not held; returns `known` if it is still current (304).

        `connected` is called when a new connection is established. Raises `MetadataUnavailableError`, and its subclass
        `WorkerUnreachableError` if nothing answered.
        """
        async with self._limiter.slot(retry=retry):
            fields = _conditional_fields(known)
            answer = await self._connections.get(
                instance, METADATA_PATH, fields, timeout or self.timeout, connected
            )
        return _read_answer(instance, known, answer)

    async def hold(self, instance: Instance, known: MetadataDocument) -> MetadataAnswer | None:
        """One GET that the worker holds until a change, or for `silence.wait` seconds; None: too many are held already.

        Raises `MetadataUnavailableError`, and `WorkerUnreachableError` after `silence.wait + silence.margin` seconds.
        """
        if self._free_holds <= 0:
            return None
        self._free_holds -= 1
        wait = self.silence.wait
        try:
            # RFC 7240 §4.3 has whole seconds only. Our workers accept fractions, which a `silent_after` below 2 needs;
            # any other server ignores what it does not understand (§2), answers at once and is polled.
            fields = _conditional_fields(known) | {"Prefer": f"wait={wait:g}"}
            answer = await self._connections.get(instance, METADATA_PATH, fields, wait + self.silence.margin)
        finally:
            self._free_holds += 1
        return _read_answer(instance, known, answer)

    async def read_health(self, instance: Instance) -> str | None:
        """The `reason` in the worker's `/health`; None if it gives none.

        Raises `WorkerUnreachableError` if nothing answered.
        """
        async with self._limiter.slot():
            answer = await self._connections.get(instance, HEALTH_PATH, {}, self.timeout)
        try:
            health = json.loads(bytes(answer.body))
        except (ValueError, RecursionError):
            return None
        reason = health.get("reason") if isinstance(health, dict) else None
        return reason if isinstance(reason, str) and reason.isprintable() else None

    async def aclose(self) -> None:
        """Fails all later calls with `MetadataUnavailableError`."""
        await self._connections.aclose()


class FetchLimiter:
    """Lets `at_once` fetches begin together. A slow fetch gives up its slot and goes on without one.

    With a plain semaphore, `at_once` workers that accept connections and never answer would hold every slot until
    their timeouts, and no other worker's metadata would arrive for seconds.
    """

    def __init__(self, at_once: int) -> None:
        self._slots = asyncio.Semaphore(at_once)
        # retries have a limit of their own: when many workers are gone, first fetches must not queue behind them
        self._retry_slots = asyncio.Semaphore(max(1, at_once // _RETRY_SHARE))
        self._free_slow = _MAX_SLOW

    @asynccontextmanager
    async def slot(self, *, retry: bool = False) -> AsyncIterator[None]:
        with ExitStack() as held:
            for semaphore in (self._retry_slots, self._slots) if retry else (self._slots,):
                await semaphore.acquire()
                held.callback(semaphore.release)
            self._release_later(held)
            yield

    def _release_later(self, held: ExitStack) -> None:
        held.callback(asyncio.get_running_loop().call_later(_SLOW_AFTER, self._release_slow, held).cancel)

    def _release_slow(self, held: ExitStack) -> None:
        if self._free_slow <= 0:
            self._release_later(held)
            return
        self._free_slow -= 1
        held.close()
        held.callback(self._slow_ended)

    def _slow_ended(self) -> None:
        self._free_slow += 1


def describe_failure(error: MetadataUnavailableError, scheme: str) -> str:
    """The request, why it failed and what to do, in one line; `scheme`: `http` or `https`."""
    remedy = _remedy(error, f"{scheme}://{error.authority}")
    return f"GET {scheme}://{error.authority}{METADATA_PATH}: {error.reason}" + (
        f"; {remedy}" if remedy else ""
    )


def _remedy(error: MetadataUnavailableError, url: str) -> str:
    port = error.authority.rpartition(":")[2]
    if isinstance(error.__cause__, ConnectionRefusedError):
        return (
            f"nothing listens on port {port}: start the server there, or name the port that it listens on "
            "(a worker: registry.open(..., port=...); a list: host:port)"
        )
    if isinstance(error, WorkerUnreachableError) and error.silent:
        return "its process may have stopped, or a firewall on the way drops the packets"
    if isinstance(error, WorkerUnreachableError) or not error.connected:
        return ""
    return f"{program('discovery')} check {url} says what it should answer"


def _conditional_fields(known: MetadataDocument | None) -> dict[str, str]:
    # sent as a strong tag although `read_etag` drops W/: If-None-Match compares weakly (RFC 9110 §13.1.2)
    return {} if known is None or known.etag is None else {"If-None-Match": f'"{known.etag}"'}


def _read_answer(instance: Instance, known: MetadataDocument | None, answer: HttpResponse) -> MetadataAnswer:
    fields = answer.fields()
    held = "wait" in (fields.get("Preference-Applied") or "").lower()
    if answer.status == 304 and known is not None:
        verify_identity(instance, fields)
        return MetadataAnswer(_update_ready(known, read_ready(fields)), held)
    if answer.status in _NO_DOCUMENT_STATUSES:
        return MetadataAnswer(NO_DOCUMENT)
    if answer.status in (401, 403):
        raise _unavailable(
            instance, f"HTTP {answer.status}: the worker wants a bearer token, or another one than was sent"
        )
    if answer.status != 200:
        raise _unavailable(instance, f"HTTP {answer.status}, expected 200")
    return MetadataAnswer(read_document(instance, fields, bytes(answer.body)), held)


def _update_ready(known: MetadataDocument, ready: bool) -> MetadataDocument:
    if known.ready == ready:
        return known
    return MetadataDocument(known.body, known.etag, ready, known.verified)


def _unavailable(instance: Instance, reason: str) -> MetadataUnavailableError:
    return MetadataUnavailableError(instance.id, instance.authority, reason, connected=True)
