"""Asking a worker for its metadata: one GET, conditional, held by the worker when asked (design: the wire contract)."""

import asyncio
import json
import os
import socket
import ssl
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import tenacity
from yarl import URL

from discovery.document import (
    NO_DOCUMENT,
    Document,
    read_document,
    read_metadata,
    read_ready,
    verify_identity,
)
from discovery.errors import MetadataUnavailableError, WorkerUnreachableError
from discovery.instance import DEFAULT_WAIT, HEALTH_PATH, METADATA_LIMIT, METADATA_PATH, Instance

_WITHOUT_DOCUMENT: Final = (404, 405, 501)
_REMEMBERED: Final = 4096
_BUSY_SHARE: Final = 4


@dataclass(frozen=True, slots=True)
class Answer:
    """What a GET brought. `held`: the worker promised to hold the next one (`Preference-Applied: wait`)."""

    document: Document
    held: bool = False


class MetadataClient:
    """GETs of `/metadata`, many at once; must be closed. Redirects are not followed, proxies not asked.

    At most `concurrency` fetches run at once, of which a quarter may be retries, so that workers that hang cannot
    keep others waiting. At most `held` GETs are held, which do not count as fetches. Times are in seconds.
    """

    def __init__(
        self,
        *,
        ssl_context: ssl.SSLContext | None = None,
        token: str | None = None,
        timeout: float = 5.0,
        wait: float = DEFAULT_WAIT,
        concurrency: int = 128,
        held: int = 2048,
    ) -> None:
        self.wait = wait
        self.timeout = timeout
        self._ssl = ssl_context
        self._headers = {"Accept": "application/json"} | (
            {"Authorization": f"Bearer {token}"} if token else {}
        )
        self._fetches = asyncio.Semaphore(concurrency)
        self._retries = asyncio.Semaphore(max(1, concurrency // _BUSY_SHARE))
        self._free_holds = held
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        self._read: OrderedDict[tuple[str, str, str], Document] = OrderedDict()

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
        self, instance: Instance, known: Document | None = None, *, retry: bool = False
    ) -> Answer:
        """One GET that is answered at once; `known` comes back when it is still current.

        Raises `MetadataUnavailableError`, and its subclass `WorkerUnreachableError` when nothing answered.
        """
        if retry:
            async with self._retries:
                return await self.fetch(instance, known)
        async with self._fetches:
            return await self._get(instance, known, {}, self.timeout)

    async def hold(self, instance: Instance, known: Document) -> Answer | None:
        """One GET that the worker holds until something changes or `wait` seconds pass; None: no hold is free.

        Raises as `fetch` does; silence for 2 s longer than `wait` is `WorkerUnreachableError`.
        """
        if self._free_holds <= 0:
            return None
        self._free_holds -= 1
        try:
            return await self._get(instance, known, {"Prefer": f"wait={self.wait:g}"}, self.wait + 2.0)
        finally:
            self._free_holds += 1

    async def read_health(self, instance: Instance) -> str | None:
        """Why the worker is not ready, as its `/health` says it; None where it does not say.

        Raises `WorkerUnreachableError` when nothing answered.
        """
        body = b""
        async with self._fetches, self._asking(instance, HEALTH_PATH, {}, self.timeout) as response:
            body = await read_body(response)
        try:
            said = json.loads(body)
        except (ValueError, RecursionError):
            return None
        reason = said.get("reason") if isinstance(said, dict) else None
        return reason if isinstance(reason, str) and reason.isprintable() else None

    async def aclose(self) -> None:
        """Whoever asks from now on gets `MetadataUnavailableError`."""
        self._closed = True
        if self._session is not None:
            await self._session.close()

    async def _get(
        self, instance: Instance, known: Document | None, headers: dict[str, str], timeout: float
    ) -> Answer:
        if known is not None and known.etag is not None:
            headers = headers | {"If-None-Match": f'"{known.etag}"'}
        async with self._asking(instance, METADATA_PATH, headers, timeout) as response:
            return await _read_answer(instance, known, response)

    @asynccontextmanager
    async def _asking(
        self, instance: Instance, path: str, headers: dict[str, str], timeout: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer to one GET, to be read within; raises as `fetch` does."""
        if self._closed:
            raise _unavailable(instance, "its discovery is closed")
        try:
            async with (
                asyncio.timeout(timeout),
                self._open_session().get(
                    self._url(instance, path), headers=headers, allow_redirects=False
                ) as response,
            ):
                yield response
        except TimeoutError as error:
            raise _unreachable(instance, f"no answer within {timeout:g} s") from error
        except (aiohttp.ClientPayloadError, aiohttp.ClientConnectionError, OSError) as error:
            raise _unreachable(instance, connection_problem(error)) from error
        except (UnicodeError, aiohttp.InvalidURL) as error:
            raise _unavailable(instance, f"its address cannot be asked: {error}") from error
        except (aiohttp.ClientError, ValueError) as error:
            raise _unavailable(instance, f"not an HTTP answer ({type(error).__name__})") from error

    def _url(self, instance: Instance, path: str) -> URL:
        try:
            return URL(f"{'https' if self._ssl else 'http'}://{instance.authority}{path}")
        except ValueError as error:
            raise _unavailable(instance, f"its address cannot be asked: {error}") from error

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=self._ssl or True),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self.timeout),
                headers=self._headers,
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
            )
        return self._session


async def _read_answer(
    instance: Instance, known: Document | None, response: aiohttp.ClientResponse
) -> Answer:
    held = "wait" in response.headers.get("Preference-Applied", "").lower()
    if response.status == 304 and known is not None:
        verify_identity(instance, response.headers)
        return Answer(_with_ready(known, read_ready(response.headers)), held)
    if response.status in _WITHOUT_DOCUMENT:
        return Answer(NO_DOCUMENT)
    if response.status in (401, 403):
        raise _unavailable(instance, f"HTTP {response.status}: the worker wants another bearer token")
    if response.status != 200:
        raise _unavailable(instance, f"HTTP {response.status}, expected 200")
    return Answer(read_document(instance, response.headers, await read_body(response)), held)


def connection_problem(error: Exception) -> str:
    """What kept a GET from an answer, in words; of a connection that was not made, what the system says."""
    failed = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else None
    if failed is None or not failed.errno or isinstance(failed, socket.gaierror | ssl.SSLError):
        return str(error) or type(error).__name__
    return f"cannot be reached: {os.strerror(failed.errno)}"


async def read_body(response: aiohttp.ClientResponse, limit: int = METADATA_LIMIT) -> bytes:
    """The whole body; of one that is longer than `limit` bytes, somewhat more than `limit` and no further."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > limit:  # the caller judges; here we only stop reading
            response.close()
            break
    return bytes(body)


def _with_ready(known: Document, ready: bool) -> Document:
    if known.ready == ready:
        return known
    return Document(known.body, known.etag, ready, known.verified)


def _unavailable(instance: Instance, reason: str) -> MetadataUnavailableError:
    return MetadataUnavailableError(instance.id, instance.authority, reason)


def _unreachable(instance: Instance, reason: str) -> WorkerUnreachableError:
    return WorkerUnreachableError(instance.id, instance.authority, reason)
