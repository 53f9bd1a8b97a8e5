"""GETs to an API server over our own aiohttp session."""

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

import aiohttp
from yarl import URL

from discovery.kubernetes.credentials import Cluster, Identity, TlsFiles
from discovery.kubernetes.timings import Timings

_KEEPALIVE: Final = (
    ("TCP_KEEPIDLE", 10),
    ("TCP_KEEPINTVL", 5),
    ("TCP_KEEPCNT", 3),
    ("TCP_USER_TIMEOUT", 20_000),
)
"""A peer that vanished is noticed in 20 s (measured with packets dropped in a network namespace)."""


class TransportError(Exception):
    """No answer, or an answer that broke off: connection, name, TLS, deadline. The text says which. `unreachable`: no
    connection could be made.
    """

    def __init__(self, reason: str, *, unreachable: bool = False) -> None:
        super().__init__(reason)
        self.unreachable = unreachable


@dataclass(frozen=True, slots=True)
class Response:
    """An answer whose headers are in. `chunks` raises TransportError when the body breaks off."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]


class ApiTransport(Protocol):
    """One GET for each call; many at once."""

    def open(self, path: str, params: Mapping[str, str]) -> AbstractAsyncContextManager[Response]:
        """Entering sends the request and waits for the headers; TransportError when there are none. Header names of
        the response are matched without case.
        """
        ...

    async def reachable(self) -> bool:
        """Whether a connection can be made now, without asking anything; False where that cannot be told."""
        ...

    async def aclose(self) -> None: ...


class ClusterTransport:
    """A `ApiTransport` over aiohttp: no pool limit, identity encoding, dead peers noticed in 20 s, credentials read anew
    and tried once more after a 401, certificate authorities read anew and tried once more when the server's
    certificate does not verify.
    """

    def __init__(self, cluster: Cluster, timings: Timings | None = None) -> None:
        self._cluster = cluster
        self._timings = timings or Timings()
        self._session: aiohttp.ClientSession | None = None
        self._tls: tuple[TlsFiles, ssl.SSLContext] | None = None

    @asynccontextmanager
    async def open(self, path: str, params: Mapping[str, str]) -> AsyncGenerator[Response]:
        url = URL(self._cluster.server.rstrip("/") + path).with_query(params)
        response = await self._answer(url)
        try:
            async with aclosing(_chunks(response)) as chunks:
                yield Response(response.status, response.headers, chunks)
        finally:
            _drop(response)

    async def reachable(self) -> bool:
        server = URL(self._cluster.server)
        if self._cluster.proxy is not None or server.host is None or server.port is None:
            return False  # a proxy that listens says nothing of the server behind it
        try:
            async with asyncio.timeout(self._timings.connect):
                _, writer = await asyncio.open_connection(server.host, server.port)
        except OSError:  # TimeoutError is one
            return False
        writer.transport.abort()
        return True

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()
            await asyncio.sleep(0)  # what was dropped is closed in the loop's next round

    async def _answer(self, url: URL) -> aiohttp.ClientResponse:
        response = await self._verified(url)
        if response.status == 401:
            _drop(response)
            self._cluster.credentials.rejected()
            response = await self._verified(url)
        return response

    async def _verified(self, url: URL) -> aiohttp.ClientResponse:
        try:
            return await self._get(url)
        except _CertificateError:
            self._tls = None
        try:
            return await self._get(url)
        except _CertificateError as error:
            raise TransportError(str(error)) from error

    async def _get(self, url: URL) -> aiohttp.ClientResponse:
        identity = await self._identity()
        deadline = self._timings.header_deadline
        try:
            async with asyncio.timeout(deadline):
                return await self._open_session().get(
                    url,
                    headers=identity.headers,
                    ssl=await self._context(identity.tls),
                    server_hostname=identity.tls.server_name if identity.tls else None,
                    proxy=self._cluster.proxy,
                    allow_redirects=False,
                )
        except aiohttp.ClientConnectorCertificateError as error:
            raise _CertificateError(f"{self._cluster.server}: {error.certificate_error}") from error
        except TimeoutError as error:
            reason = str(error) or f"no answer within {deadline:g} s"
            unreachable = isinstance(error, aiohttp.ConnectionTimeoutError)
            raise TransportError(f"{self._cluster.server}: {reason}", unreachable=unreachable) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            unreachable = isinstance(error, aiohttp.ClientConnectorError)
            raise TransportError(
                f"{self._cluster.server}: {_cause(error)}", unreachable=unreachable
            ) from error

    async def _identity(self) -> Identity:
        try:
            return await self._cluster.credentials.identity()
        except OSError as error:
            raise TransportError(f"no credentials for {self._cluster.server}: {error}") from error

    async def _context(self, files: TlsFiles | None) -> ssl.SSLContext | bool:
        if files is None:
            return True
        if self._tls is None or self._tls[0] != files:
            self._tls = files, await asyncio.to_thread(files.context)
        return self._tls[1]

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, socket_factory=keepalive_socket),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._timings.connect),
                headers={"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "adsum"},
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=self._cluster.trust_env,
                middlewares=(_once,),
            )
        return self._session


class _CertificateError(Exception):
    """The server's certificate does not verify."""


async def _once(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """aiohttp repeats a GET at once whose connection broke; how often we ask is the reflector's to say."""
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


def _drop(response: aiohttp.ClientResponse) -> None:
    """Without a goodbye: TLS would wait for the peer's, for half a minute if that is gone."""
    connection = response.connection  # None once the body was read to its end
    if connection is not None and connection.transport is not None:
        connection.transport.abort()
    response.close()


def _cause(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.os_error.strerror or str(error.os_error)
    return str(error) or type(error).__name__


def keepalive_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A socket for aiohttp whose silent peer is given up by the kernel."""
    opened = socket.socket(*address[:3])
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return opened
