"""One HTTP request to a target, and what came of it: an answer, or the reason why there is none.

The connections and the parser are aiohttp's. The request is written and its answer is read here: aiohttp's session would
be half of what a request costs.
"""

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit
from weakref import WeakSet

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http import HttpProcessingError, StreamWriter
from aiohttp.streams import StreamReader
from yarl import URL

from dispatcher.config.os_reason import os_reason
from dispatcher.delivery.backoff import parse_retry_after
from dispatcher.delivery.timeouts import Timeouts
from runtime.tasks import end

DROPPED_REASON = "x-llm-d-request-dropped-reason"
MAX_ANSWER = 64 * 1024 * 1024
"""Bytes of one answer's body, at most."""
CONNECT_TIMEOUT = 10.0
"""Seconds."""
MOST_IDLE = 30.0
"""Seconds after which a kept connection is not trusted any more: something on the way may have forgotten it."""
LONGEST_HEADER = 64 * 1024
"""Bytes of an answer's status line and of each of its headers."""
_WITH_HEAD = 64 * 1024
"""Bytes of a payload that are written at once, in one piece with the head."""
_PIECE = 256 * 1024
"""Bytes of the rest of it that are written whenever the connection took what there was."""

_TO_CONNECT: Final = aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT)
_NOBODY_THERE = (
    aiohttp.ConnectionTimeoutError,
    aiohttp.ClientConnectorError,
    aiohttp.ClientConnectorCertificateError,
)


@dataclass(frozen=True, slots=True)
class GatewayAnswer:
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
        self._origin = URL(url).origin()
        self._prefix = urlsplit(url).path.rstrip("/")
        self._tls = tls
        self._max_answer = max_answer
        self._now = now
        self._timeouts = Timeouts()
        self._seen: WeakSet[ResponseHandler] = WeakSet()

    async def __aenter__(self) -> Self:
        self._there = aiohttp.ClientRequest("POST", self._origin)  # only says where to connect to
        trusted = self._tls or True
        # no limit: how many are on their way is for whoever sends to say
        self._keeping = aiohttp.TCPConnector(limit=0, ssl=trusted, keepalive_timeout=MOST_IDLE)
        self._single = aiohttp.TCPConnector(limit=0, ssl=trusted, force_close=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._single.close()
        await self._keeping.close()

    async def post(
        self, path: str, headers: Mapping[str, str], body: bytes, timeout: float
    ) -> GatewayAnswer | NoAnswer:
        """POST `body` as it is; at most `timeout` seconds. Cancelled: the connection is closed.

        `path` and `headers` (names in lower case) must be legal already, as `dispatcher.delivery.outgoing` makes them.
        A kept connection that the other side closed meanwhile is not its answer: the request is sent once more, on a
        new one.
        """
        try:
            with self._timeouts.within(timeout):
                try:
                    return await self._ask(self._keeping, self._head(path, headers, body), body)
                except _UnheardError:
                    head = self._head(path, headers, body, "Connection: close\r\n")
                    return await self._ask(self._single, head, body)
        except (aiohttp.ClientError, HttpProcessingError) as error:
            return NoAnswer(_reason(error), reached=not isinstance(error, _NOBODY_THERE))
        except TimeoutError:
            return NoAnswer(f"no answer within {timeout:.3g} s")

    def _head(self, path: str, headers: Mapping[str, str], body: bytes, last: str = "") -> bytes:
        host = headers.get("host", self._origin.host_port_subcomponent)
        given = "".join([f"{name}: {value}\r\n" for name, value in headers.items() if name != "host"])
        return (
            f"POST {self._prefix}{path} HTTP/1.1\r\nHost: {host}\r\n{given}Content-Length: {len(body)}\r\n{last}\r\n"
        ).encode()

    async def _ask(
        self, connector: aiohttp.TCPConnector, head: bytes, body: bytes
    ) -> GatewayAnswer | NoAnswer:
        """Raises aiohttp.ClientError, HttpProcessingError and _UnheardError."""
        way = await self._connect(connector)
        rest: asyncio.Task[None] | None = None
        keep = False
        try:
            way.protocol.set_response_params(
                read_until_eof=True,
                auto_decompress=False,
                max_line_size=LONGEST_HEADER,
                max_field_size=LONGEST_HEADER,
            )
            way.transport.write(head + body[:_WITH_HEAD])
            if len(body) > _WITH_HEAD:
                rest = asyncio.create_task(_write(way.protocol, memoryview(body)[_WITH_HEAD:]))
            answer = await self._read(way)
            keep = isinstance(answer, GatewayAnswer) and (rest is None or rest.done())
            return answer
        finally:
            way.leave(keep=keep)
            if rest is not None:
                await end(rest)

    async def _connect(self, connector: aiohttp.TCPConnector) -> "_Way":
        """A new connection, or one that said nothing since its last answer."""
        while True:
            try:
                connection = await connector.connect(self._there, [], _TO_CONNECT)
            except TimeoutError as error:
                raise aiohttp.ConnectionTimeoutError from error
            protocol, transport = connection.protocol, connection.transport
            if protocol is None or transport is None:
                connection.close()
                raise aiohttp.ServerDisconnectedError
            if protocol not in self._seen:
                self._seen.add(protocol)
                return _Way(connection, protocol, transport, kept=False)
            if not protocol.should_close:
                return _Way(connection, protocol, transport, kept=True)
            connection.close()

    async def _read(self, way: "_Way") -> GatewayAnswer | NoAnswer:
        try:
            message, payload = await way.protocol.read()
        except aiohttp.ClientConnectionError as error:
            if way.kept and not _begun(error) and not self._single.closed:
                raise _UnheardError from error
            raise
        while 100 <= message.code <= 199 and message.code != 101:  # not the answer yet
            message, payload = await way.protocol.read()
        if not 200 <= message.code <= 599:
            return NoAnswer(f"the answer's status is {message.code}, expected 200 to 599")
        headers = message.headers
        body = await _body(payload, _declared(headers.get("Content-Length", "")), self._max_answer)
        if body is None:
            return NoAnswer(f"the answer is larger than {self._max_answer} bytes", final=True)
        asked = headers.get("Retry-After")
        wait = None if asked is None else parse_retry_after(asked, self._now())
        return GatewayAnswer(message.code, body, wait, _text(headers.get(DROPPED_REASON, "")))


class _UnheardError(Exception):
    """A kept connection ended before anything was answered."""


@dataclass(slots=True)
class _Way:
    """The connection that a request takes. `kept`: an earlier one took it too."""

    connection: Connection
    protocol: ResponseHandler
    transport: asyncio.Transport
    kept: bool

    def leave(self, *, keep: bool) -> None:
        """Where it is closed: at once, not after what is left to be written, which may be never."""
        if keep:
            self.connection.release()
        else:
            self.connection.close()
        if self.transport.is_closing() and self._open:
            self.transport.abort()

    @property
    def _open(self) -> bool:
        """Whether there is anything to abort; asyncio's transport must not be told to when it has ended."""
        socket = self.transport.get_extra_info("socket")
        return socket is not None and socket.fileno() >= 0


async def _write(protocol: ResponseHandler, rest: memoryview) -> None:
    """As fast as it is taken. Fails where the connection ends, which is for whoever reads the answer to say."""
    writer = StreamWriter(protocol, asyncio.get_running_loop())
    for start in range(0, len(rest), _PIECE):
        await writer.drain()
        await writer.write(rest[start : start + _PIECE], drain=False)
        await asyncio.sleep(0)  # a fast target never lets it wait


def _declared(digits: str) -> int:
    """A length as the parser passes it on: any number of digits; of one that no memory could hold the first of them."""
    return int(digits.lstrip("0")[:20] or "0")


async def _body(payload: StreamReader, declared: int, most: int) -> bytes | None:
    """None: larger than `most` bytes."""
    if declared > most:
        return None
    parts, size = [], 0
    while not payload.at_eof():
        part = await payload.readany()
        size += len(part)
        if size > most:
            return None
        parts.append(part)
    return b"".join(parts)


def _begun(error: aiohttp.ClientConnectionError) -> bool:
    """Whether a part of an answer had come. The client knows only where the connection was not reset."""
    return isinstance(error, aiohttp.ServerDisconnectedError) and not isinstance(error.message, str)


def _reason(error: aiohttp.ClientError | HttpProcessingError) -> str:
    match error:
        case aiohttp.ConnectionTimeoutError():
            return f"no connection within {CONNECT_TIMEOUT:g} s"
        case aiohttp.ClientConnectorError() | aiohttp.ClientConnectorCertificateError():
            return f"no connection: {os_reason(error)}"
        case HttpProcessingError():
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
