"""Asking a worker for its metadata: one GET, conditional, held by the worker when asked (design: the wire contract)."""

import json
import ssl
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import tenacity

from discovery.errors import MetadataUnavailableError, WorkerUnreachableError
from discovery.instance import HEALTH_PATH, METADATA_PATH, Instance
from discovery.metadata.concurrency import Turns
from discovery.metadata.connections import Asker
from discovery.metadata.document import (
    NO_DOCUMENT,
    MetadataDocument,
    read_document,
    read_metadata,
    read_ready,
    verify_identity,
)
from discovery.metadata.silence import Silence, given
from runtime.http1 import answer as http_answer

_WITHOUT_DOCUMENT: Final = (404, 405, 501)
_REMEMBERED: Final = 4096


@dataclass(frozen=True, slots=True)
class MetadataAnswer:
    """What a GET brought. `held`: the worker promised to hold the next one (`Preference-Applied: wait`)."""

    document: MetadataDocument
    held: bool = False


class MetadataClient:
    """GETs of `/metadata`, many at once; must be closed. Redirects are not followed, proxies not asked.

    At most `concurrency` fetches begin at once, of which a quarter may be retries. At most `held` GETs are held, which
    do not count as fetches. `timeout`: seconds for an answer of a worker that was not heard yet. `silence` None: what
    the environment says.
    """

    def __init__(
        self,
        *,
        ssl_context: ssl.SSLContext | None = None,
        token: str | None = None,
        timeout: float = 5.0,
        silence: Silence | None = None,
        concurrency: int = 128,
        held: int = 2048,
    ) -> None:
        self.silence = silence or given(None)
        self.timeout = timeout
        self.scheme = "https" if ssl_context else "http"
        self._asker = Asker(ssl_context=ssl_context, token=token)
        self._turns = Turns(concurrency)
        self._free_holds = held
        self._read: OrderedDict[tuple[str, str, str], MetadataDocument] = OrderedDict()

    async def read(self, instance: Instance) -> dict[str, Any]:
        """The metadata now: a conditional GET, tried up to three times when the connection fails.

        Raises `MetadataUnavailableError`. Makes this client an `Instance`'s reader.
        """
        identity = (instance.id, instance.incarnation, instance.authority)
        async for attempt in tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(WorkerUnreachableError),
            stop=tenacity.stop_after_attempt(3),
            wait=tenacity.wait_random_exponential(multiplier=0.05, max=0.5),
            reraise=True,
        ):
            with attempt:
                answer = await self.fetch(instance, self._read.get(identity))
        self._read[identity] = answer.document
        self._read.move_to_end(identity)
        if len(self._read) > _REMEMBERED:
            self._read.popitem(last=False)
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
        """One GET that is answered at once; `known` comes back when it is still current.

        `connected` is called when a connection was made for it. Raises `MetadataUnavailableError`, and its subclass
        `WorkerUnreachableError` when nothing answered.
        """
        async with self._turns.turn(retry=retry):
            fields = _condition(known)
            answer = await self._asker.get(
                instance, METADATA_PATH, fields, timeout or self.timeout, connected
            )
        return _read_answer(instance, known, answer)

    async def hold(self, instance: Instance, known: MetadataDocument) -> MetadataAnswer | None:
        """One GET that the worker holds until something changes or `silence.wait` seconds pass; None: no hold is free.

        Raises as `fetch` does; silence for `silence.margin` seconds longer is `WorkerUnreachableError`.
        """
        if self._free_holds <= 0:
            return None
        self._free_holds -= 1
        wait = self.silence.wait
        try:
            fields = _condition(known) | {"Prefer": f"wait={wait:g}"}
            answer = await self._asker.get(instance, METADATA_PATH, fields, wait + self.silence.margin)
        finally:
            self._free_holds += 1
        return _read_answer(instance, known, answer)

    async def read_health(self, instance: Instance) -> str | None:
        """Why the worker is not ready, as its `/health` says it; None where it does not say.

        Raises `WorkerUnreachableError` when nothing answered.
        """
        async with self._turns.turn():
            answer = await self._asker.get(instance, HEALTH_PATH, {}, self.timeout)
        try:
            said = json.loads(bytes(answer.body))
        except (ValueError, RecursionError):
            return None
        reason = said.get("reason") if isinstance(said, dict) else None
        return reason if isinstance(reason, str) and reason.isprintable() else None

    async def aclose(self) -> None:
        """Whoever asks from now on gets `MetadataUnavailableError`."""
        await self._asker.aclose()


def _condition(known: MetadataDocument | None) -> dict[str, str]:
    return {} if known is None or known.etag is None else {"If-None-Match": f'"{known.etag}"'}


def _read_answer(
    instance: Instance, known: MetadataDocument | None, answer: http_answer.HttpAnswer
) -> MetadataAnswer:
    fields = answer.fields()
    held = "wait" in (fields.get("Preference-Applied") or "").lower()
    if answer.status == 304 and known is not None:
        verify_identity(instance, fields)
        return MetadataAnswer(_with_ready(known, read_ready(fields)), held)
    if answer.status in _WITHOUT_DOCUMENT:
        return MetadataAnswer(NO_DOCUMENT)
    if answer.status in (401, 403):
        raise _unavailable(
            instance, f"HTTP {answer.status}: the worker wants a bearer token, or another one than was shown"
        )
    if answer.status != 200:
        raise _unavailable(instance, f"HTTP {answer.status}, expected 200")
    return MetadataAnswer(read_document(instance, fields, bytes(answer.body)), held)


def _with_ready(known: MetadataDocument, ready: bool) -> MetadataDocument:
    if known.ready == ready:
        return known
    return MetadataDocument(known.body, known.etag, ready, known.verified)


def _unavailable(instance: Instance, reason: str) -> MetadataUnavailableError:
    return MetadataUnavailableError(instance.id, instance.authority, reason, connected=True)
