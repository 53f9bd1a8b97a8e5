"""One HTTP request to a target, and what came of it: an answer, or the reason why there is none."""

import asyncio
import io
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit
from weakref import WeakSet

import aiohttp
from aiohttp.connector import Connection
from aiohttp.http import StreamWriter
from aiohttp.tracing import Trace
from multidict import CIMultiDict
from yarl import URL

from dispatcher.backoff import parse_retry_after
from dispatcher.os_reason import os_reason
from dispatcher.timeouts import Timeouts

DROPPED_REASON = "x-llm-d-request-dropped-reason"
MAX_ANSWER = 64 * 1024 * 1024
"""Bytes of one answer's body, at most."""
CONNECT_TIMEOUT = 10.0
"""Seconds."""
MOST_IDLE = 30.0
"""Seconds after which a kept connection is not trusted any more: something on the way may have forgotten it."""
LONGEST_HEADER = 64 * 1024
"""Bytes of an answer's status line and of each of its headers."""
_IN_ONE_PIECE = 1024 * 1024
"""Bytes of a payload that is written at once; a larger one goes out as fast as it is taken."""
_WRITTEN_AT_ONCE = 64 * 1024
"""Bytes of a payload that a connection's buffer takes without a wait."""


_NOBODY_THERE = (
    aiohttp.ConnectionTimeoutError,
    aiohttp.ClientConnectorError,
    aiohttp.ClientConnectorCertificateError,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole HTTP response; `retry_after` in seconds, `dropped_reason` empty where the target names none."""

    status: int
    body: bytes
    retry_after: float | None = None
    dropped_reason: str = ""


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """No whole response came; `final`: another attempt would end the same. `reached` False: nobody was there."""

    reason: str
    final: bool = False
    reached: bool = True


class Gateway:
    """Sends to one base URL over kept connections; an async context manager. `tls` for https, where not the system's."""

    def __init__(
        self,
        url: str,
        *,
        tls: ssl.SSLContext | None = None,
        max_answer: int = MAX_ANSWER,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._base = f"{URL(url).origin()}{urlsplit(url).path.rstrip('/')}"
        self._tls = tls
        self._max_answer = max_answer
        self._now = now
        self._timeouts = Timeouts()

    async def __aenter__(self) -> Self:
        self._keeping = self._session(keep=True)
        self._single = self._session(keep=False)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._single.close()
        await self._keeping.close()

    async def post(
        self, path: str, headers: Mapping[str, str], body: bytes, timeout: float
    ) -> Answer | NoAnswer:
        """POST `body` as it is; at most `timeout` seconds. Cancelled: the connection is closed.

        `path` and `headers` (names in lower case) must be legal already, as `dispatcher.outgoing` makes them.
        A kept connection that the other side closed meanwhile is not its answer: the request is sent once more, on a
        new one.
        """
        url = URL(self._base + path, encoded=True)
        try:
            with self._timeouts.within(timeout):
                try:
                    return await self._ask(self._keeping, url, headers, body)
                except _UnheardError:
                    return await self._ask(self._single, url, headers, body)
        except aiohttp.ClientError as error:
            return NoAnswer(_reason(error), reached=not isinstance(error, _NOBODY_THERE))
        except TimeoutError:
            return NoAnswer(f"no answer within {timeout:.3g} s")

    async def _ask(
        self, session: aiohttp.ClientSession, url: URL, headers: Mapping[str, str], body: bytes
    ) -> Answer | NoAnswer:
        """Raises aiohttp.ClientError, and _UnheardError."""
        way = _Way()
        entered = _way.set(way)
        data = body if len(body) <= _IN_ONE_PIECE else io.BytesIO(body)
        try:
            response = await session.post(url, data=data, headers=headers, allow_redirects=False)
            way.answered = True
            try:
                return await self._read(response)
            finally:
                response.close()  # to no effect where it was read to its end
        except aiohttp.ClientConnectionError as error:
            if way.kept and not way.answered and not _begun(error) and not session.closed:
                raise _UnheardError from error
            raise
        finally:
            _way.reset(entered)
            way.clear()

    async def _read(self, response: aiohttp.ClientResponse) -> Answer | NoAnswer:
        if not 200 <= response.status <= 599:
            return NoAnswer(f"the answer's status is {response.status}, expected 200 to 599")
        body = await _body(response, self._max_answer)
        if body is None:
            return NoAnswer(f"the answer is larger than {self._max_answer} bytes", final=True)
        headers = response.headers
        asked = headers.get("Retry-After")
        wait = None if asked is None else parse_retry_after(asked, self._now())
        return Answer(response.status, body, wait, _text(headers.get(DROPPED_REASON, "")))

    def _session(self, *, keep: bool) -> aiohttp.ClientSession:
        options: dict[str, float] = {"keepalive_timeout": MOST_IDLE} if keep else {}
        return aiohttp.ClientSession(
            # no limit: how many are on their way is for whoever sends to say
            connector=_Connector(limit=0, ssl=self._tls or True, force_close=not keep, **options),
            request_class=_Request,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT),
            auto_decompress=False,
            trust_env=False,
            max_line_size=LONGEST_HEADER,
            max_field_size=LONGEST_HEADER,
        )


class _UnheardError(Exception):
    """A kept connection ended before anything was answered."""


@dataclass(slots=True)
class _Way:
    """The connection that a request took. `kept`: from an earlier one; `answered`: a status and headers came."""

    transport: asyncio.Transport | None = None
    kept: bool = False
    answered: bool = False

    def clear(self) -> None:
        """Where it is to be closed: at once, not after what is left to be written, which may be never."""
        if self.transport is not None and self.transport.is_closing():
            self.transport.abort()


_way: ContextVar[_Way] = ContextVar("_way")


class _Request(aiohttp.ClientRequest):
    """Adds no header but Host and Content-Length. A small body is written as it is, without a task of its own."""

    _skip_auto_headers = CIMultiDict({"Content-Type": None})
    _small: bytes | None = None

    def update_auto_headers(self, skip_auto_headers: Iterable[str] | None) -> None:
        pass

    def update_body_from_data(self, body: Any, _stacklevel: int = 3) -> None:
        if isinstance(body, bytes) and len(body) <= _WRITTEN_AT_ONCE:
            self._small = body
            self.headers["Content-Length"] = str(len(body))
        else:
            super().update_body_from_data(body, _stacklevel + 1)

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        if self._small is None:
            return await super().send(conn)
        if conn.protocol is None:
            raise aiohttp.ClientConnectionResetError("the connection ended")
        if conn._connector.force_close:
            self.headers["Connection"] = "close"
        writer = StreamWriter(conn.protocol, self.loop)
        await writer.write_headers(f"{self.method} {self.url.raw_path_qs} HTTP/1.1", self.headers)
        await writer.write(self._small, drain=False)
        writer.set_eof()
        return self.response_class(
            self.method,
            self.original_url,
            writer=None,
            continue100=None,
            timer=self._timer,
            request_info=self.request_info,
            traces=[],
            loop=self.loop,
            session=self._session,
            stream_writer=writer,
        )


class _Connector(aiohttp.TCPConnector):
    """Tells each request which connection it takes."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self._seen: WeakSet[object] = WeakSet()

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> Connection:
        while True:
            connection = await super().connect(req, traces, timeout)
            protocol = connection.protocol
            kept = protocol in self._seen
            if protocol is not None and kept and protocol.should_close:
                connection.close()  # it said something that nobody asked for
                continue
            if not kept:
                self._seen.add(protocol)
            way = _way.get()
            way.transport, way.kept = connection.transport, kept
            return connection


async def _body(response: aiohttp.ClientResponse, most: int) -> bytes | None:
    """None: larger than `most` bytes."""
    if (size := response.content_length) is not None:
        return await response.read() if size <= most else None
    parts, size = [], 0
    while part := await response.content.readany():
        size += len(part)
        if size > most:
            return None
        parts.append(part)
    return b"".join(parts)


def _begun(error: aiohttp.ClientConnectionError) -> bool:
    """Whether a part of an answer had come. The client knows only where the connection was not reset."""
    return isinstance(error, aiohttp.ServerDisconnectedError) and not isinstance(error.message, str)


def _reason(error: aiohttp.ClientError) -> str:
    match error:
        case aiohttp.ConnectionTimeoutError():
            return f"no connection within {CONNECT_TIMEOUT:g} s"
        case aiohttp.ClientConnectorError() | aiohttp.ClientConnectorCertificateError():
            return f"no connection: {os_reason(error)}"
        case aiohttp.ClientResponseError():
            return f"the answer is not HTTP/1.1: {_first_line(error.message)}"
        case aiohttp.ClientPayloadError():
            return f"the answer's body is malformed or ended too early: {_first_line(str(error))}"
        case aiohttp.ServerDisconnectedError():
            return "the connection ended before the answer did" if _begun(error) else "the connection ended"
    return f"the connection ended: {_first_line(str(error))}"


def _first_line(text: str) -> str:
    return _text(text.strip().partition("\n")[0])


def _text(said: str) -> str:
    """Without what is no text: the client passes undecodable bytes on as surrogates."""
    return said.encode("utf-8", "replace").decode()
