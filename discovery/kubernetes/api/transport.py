"""Sends GETs to an API server with aiohttp, and streams the answers or decodes them; POSTs and PATCHes small documents."""

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

import aiohttp
import msgspec
from yarl import URL

from discovery.kubernetes.api.credentials import Cluster, Identity, TlsFiles
from discovery.kubernetes.api.refusal import decode_status, parse_refusal
from discovery.kubernetes.api.timings import Timings

T = TypeVar("T")


_KEEPALIVE: Final = (
    ("TCP_KEEPIDLE", 10),
    ("TCP_KEEPINTVL", 5),
    ("TCP_KEEPCNT", 3),
    ("TCP_USER_TIMEOUT", 20_000),
)
"""A watch may be silent for minutes, so that only the kernel can notice a peer that vanished: in 20 s, measured with
packets dropped in a network namespace."""


@dataclass(frozen=True, slots=True)
class _Sent:
    """The parts of a request beside its URL."""

    method: str = "GET"
    document: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


_GET: Final = _Sent()
_ANSWER_LIMIT: Final = 1024 * 1024
"""Bytes of the answer to a POST or a PATCH."""


class TransportError(Exception):
    """No answer, or one that broke off; the text says whether by the connection, name, TLS or deadline.
    `connect_failed`: no connection could be made.
    """

    def __init__(self, reason: str, *, connect_failed: bool = False) -> None:
        super().__init__(reason)
        self.connect_failed = connect_failed


@dataclass(frozen=True, slots=True)
class Response:
    """An answer whose headers have arrived. Iterating `chunks` raises TransportError when the body breaks off."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]


class ApiTransport(Protocol):
    """The source's view of HTTP. Any number of GETs may run at once."""

    def open(self, path: str, params: Mapping[str, str]) -> AbstractAsyncContextManager[Response]:
        """Entering sends the request and waits for the headers; TransportError if none arrive. `Response.headers` is
        a mapping without regard to case.
        """
        ...

    async def can_connect(self) -> bool:
        """Tries to connect, and sends nothing. False as well where that would say nothing of the API server."""
        ...

    async def aclose(self) -> None: ...


class ClusterTransport:
    """ApiTransport over aiohttp, POSTs and PATCHes. After a 401 the credentials are read again and the request is repeated
    once; after a certificate that does not verify, so are the certificate authorities. Both are rotated while we run.
    """

    def __init__(self, cluster: Cluster, timings: Timings | None = None) -> None:
        self._cluster = cluster
        self._timings = timings or Timings()
        self._session: aiohttp.ClientSession | None = None
        self._tls: tuple[TlsFiles, ssl.SSLContext] | None = None

    @asynccontextmanager
    async def open(self, path: str, params: Mapping[str, str]) -> AsyncGenerator[Response]:
        url = URL(self._cluster.server.rstrip("/") + path).with_query(params)
        async with self._answer(url, _GET) as answer:
            yield answer

    async def post(self, path: str, document: bytes) -> tuple[int, bytes]:
        """The status and the body of the answer; TransportError if none arrives or its body is longer than 1 MiB."""
        return await self._send(path, _Sent("POST", document, {"Content-Type": "application/json"}))

    async def patch(self, path: str, document: bytes) -> tuple[int, bytes]:
        """As `post`, for a JSON merge patch (RFC 7396)."""
        merge = {"Content-Type": "application/merge-patch+json"}
        return await self._send(path, _Sent("PATCH", document, merge))

    async def _send(self, path: str, sent: _Sent) -> tuple[int, bytes]:
        url = URL(self._cluster.server.rstrip("/") + path)
        body = bytearray()
        try:
            async with asyncio.timeout(self._timings.header_deadline), self._answer(url, sent) as answer:
                async for chunk in answer.chunks:
                    body += chunk
                    if len(body) > _ANSWER_LIMIT:
                        raise TransportError(
                            f"{self._cluster.server}: an answer of more than {_ANSWER_LIMIT} bytes"
                        )
        except TimeoutError as error:
            raise TransportError(f"{self._cluster.server}: no answer in time") from error
        return answer.status, bytes(body)

    @asynccontextmanager
    async def _answer(self, url: URL, sent: _Sent) -> AsyncGenerator[Response]:
        response = await self._ask_authenticated(url, sent)
        try:
            async with aclosing(_chunks(response)) as chunks:
                yield Response(response.status, response.headers, chunks)
        finally:
            _abort(response)

    async def can_connect(self) -> bool:
        server = URL(self._cluster.server)
        if self._cluster.proxy is not None or server.host is None or server.port is None:
            return False  # a proxy accepts connections whether or not the server behind it lives
        try:
            async with asyncio.timeout(self._timings.connect_timeout):
                _, writer = await asyncio.open_connection(server.host, server.port)
        except OSError:  # TimeoutError is one
            return False
        writer.transport.abort()
        return True

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()
            await asyncio.sleep(0)  # aborted connections are closed in the next iteration of the event loop

    async def _ask_authenticated(self, url: URL, sent: _Sent) -> aiohttp.ClientResponse:
        response = await self._ask_verified(url, sent)
        if response.status == 401:
            _abort(response)
            self._cluster.credentials.rejected()
            response = await self._ask_verified(url, sent)
        return response

    async def _ask_verified(self, url: URL, sent: _Sent) -> aiohttp.ClientResponse:
        try:
            return await self._ask(url, sent)
        except _CertificateError:
            self._tls = None
        try:
            return await self._ask(url, sent)
        except _CertificateError as error:
            raise TransportError(str(error)) from error

    async def _ask(self, url: URL, sent: _Sent) -> aiohttp.ClientResponse:
        identity = await self._identity()
        deadline = self._timings.header_deadline
        try:
            async with asyncio.timeout(deadline):
                return await self._open_session().request(
                    sent.method,
                    url,
                    data=sent.document,
                    headers={**identity.headers, **sent.headers},
                    ssl=await self._ssl_context(identity.tls),
                    server_hostname=identity.tls.server_name if identity.tls else None,
                    proxy=self._cluster.proxy,
                    allow_redirects=False,
                )
        except aiohttp.ClientConnectorCertificateError as error:
            raise _CertificateError(f"{self._cluster.server}: {error.certificate_error}") from error
        except TimeoutError as error:
            reason = str(error) or f"no answer within {deadline:g} s"
            connect_failed = isinstance(error, aiohttp.ConnectionTimeoutError)
            raise TransportError(
                f"{self._cluster.server}: {reason}", connect_failed=connect_failed
            ) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            connect_failed = isinstance(error, aiohttp.ClientConnectorError)
            raise TransportError(
                f"{self._cluster.server}: {_cause(error)}", connect_failed=connect_failed
            ) from error

    async def _identity(self) -> Identity:
        try:
            return await self._cluster.credentials.identity()
        except OSError as error:
            raise TransportError(f"no credentials for {self._cluster.server}: {error}") from error

    async def _ssl_context(self, files: TlsFiles | None) -> ssl.SSLContext | bool:
        if files is None:
            return True
        if self._tls is None or self._tls[0] != files:
            self._tls = files, await asyncio.to_thread(files.context)
        return self._tls[1]

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                # limit: each watch occupies a connection, so that a hundred of them would block all other requests
                connector=aiohttp.TCPConnector(limit=0, socket_factory=keepalive_socket),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._timings.connect_timeout),
                # identity: a server that compresses a watch ends a gzip member at each flush, and clients have lost all
                # but the first (aio-libs/aiohttp#7157)
                headers={"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "adsum"},
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=self._cluster.trust_env,
                middlewares=(_without_retry,),
            )
        return self._session


class _CertificateError(Exception):
    """The server's certificate does not verify: the authorities may have been rotated."""


async def _without_retry(
    request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """aiohttp repeats a GET whose kept connection broke, at once; but only the reflector may decide when to ask again.

    A TransportError ends aiohttp's retry, since it is none of aiohttp's own errors.
    """
    try:
        return await send(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise TransportError(f"{request.url.origin()}: {_cause(error)}") from error


async def _chunks(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
    try:
        async for chunk in response.content.iter_any():
            yield chunk
    except (aiohttp.ClientError, OSError) as error:
        raise TransportError(f"the answer broke off: {_cause(error)}") from error


def _abort(response: aiohttp.ClientResponse) -> None:
    """Closes without TLS close_notify: asyncio waits 30 s for the peer's, which may be gone."""
    connection = response.connection  # None once the body was read to its end
    if connection is not None and connection.transport is not None:
        connection.transport.abort()
    response.close()


def _cause(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.os_error.strerror or str(error.os_error)
    return str(error) or type(error).__name__


def keepalive_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A socket for aiohttp whose connection the kernel ends when the peer has vanished."""
    opened = socket.socket(*address[:3])
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return opened


_DEADLINE: Final = 10.0
_BODY_LIMIT: Final = 64 * 1024 * 1024


class ApiReadError(Exception):
    """The text says why. `code`: the HTTP status, None without a whole answer. `retry_after`: seconds that the server asks for."""

    def __init__(self, code: int | None, text: str, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.retry_after = retry_after


async def read_api(transport: ApiTransport, path: str, params: Mapping[str, str], kind: type[T]) -> T:
    """One GET of at most 64 MiB and 10 s, decoded as `kind`. Raises ApiReadError for any other answer, and for none."""
    body = bytearray()
    try:
        async with asyncio.timeout(_DEADLINE), transport.open(path, params) as response:
            async for chunk in response.chunks:
                body += chunk
                if len(body) > _BODY_LIMIT:
                    raise ApiReadError(200, f"{path}: the answer is longer than {_BODY_LIMIT} bytes")
    except (TransportError, TimeoutError) as error:
        raise ApiReadError(None, f"{path}: {str(error) or 'no answer in time'}") from error
    if response.status != 200:
        refusal = parse_refusal(response.status, decode_status(body), response.headers)
        raise ApiReadError(response.status, refusal.text, refusal.retry_after)
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiReadError(
            200, f"{path}: the answer cannot be read ({error}); is this an API server?"
        ) from error
