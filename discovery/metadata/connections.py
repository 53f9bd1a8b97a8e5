"""Sends GETs to many workers over persistent HTTP/1.1 connections; at most one idle connection is kept for each worker.

With one aiohttp request each, the client took most of the time of such a small GET (benchmarks/README.md, "scraping").
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from yarl import URL

from adsum.http1.connection import KeptConnection
from adsum.http1.response import HttpResponse, IncompleteResponseError, ResponseError, ResponseReader
from discovery.errors import MetadataUnavailableError, WorkerUnreachableError
from discovery.instance import METADATA_LIMIT, Instance

if TYPE_CHECKING:
    import aiohttp

_BUFFER: Final = 64 * 1024
"""Bytes of the receive buffer. All connections share it: the event loop reads one at a time."""
_IDLE_TIMEOUT: Final = 15.0
"""Seconds after which an idle connection is closed. Longer than any delay between two polls, so that those reuse it."""

_reader: Final = partial(ResponseReader, METADATA_LIMIT)


@dataclass(slots=True, eq=False)
class _WorkerConnection:
    """`head`: the request's bytes from the path to the fields that never change. `idle_since`: on the loop's clock."""

    connection: KeptConnection
    head: str
    idle_since: float = 0.0


class WorkerConnections:
    """GETs to many workers concurrently. Follows no redirects and uses no proxy. Must be closed.

    Addresses come from the source only: a worker that redirects could make its readers ask any host that they reach.
    """

    def __init__(self, *, ssl_context: ssl.SSLContext | None, token: str | None) -> None:
        self._tls = ssl_context
        self._fields = "Accept: application/json\r\nAccept-Encoding: identity\r\nUser-Agent: adsum\r\n"
        if token:
            self._fields += f"Authorization: Bearer {_check_token(token)}\r\n"
        self._buffer = bytearray(_BUFFER)
        self._idle: dict[str, _WorkerConnection] = {}
        self._busy: set[_WorkerConnection] = set()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def get(
        self,
        instance: Instance,
        path: str,
        fields: Mapping[str, str],
        timeout: float,
        connected: Callable[[], object] | None = None,
    ) -> HttpResponse:
        """The answer, whatever its status. `timeout` in seconds; `connected` is called when a new connection is established.

        Raises `MetadataUnavailableError` for an answer that is not HTTP, and its subclass `WorkerUnreachableError` for
        none at all: its `connected` says whether a connection was established.
        """
        if self._closed:
            raise _unavailable(instance, "this discovery is closed")
        worker = self._acquire(instance)
        more = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        request = f"GET {path}{worker.head}{more}\r\n".encode()
        try:
            until = asyncio.get_running_loop().time() + timeout
            return await worker.connection.send(request, _reader, until, connected)
        except (OSError, ResponseError, UnicodeError) as error:
            raise _failure(instance, error, timeout, connected=worker.connection.connected) from error
        finally:
            self._release(instance.authority, worker)

    async def aclose(self) -> None:
        """Fails the GETs that run, and all later ones, with `MetadataUnavailableError`."""
        self._closed = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for worker in (*self._idle.values(), *self._busy):
            worker.connection.close()
        self._idle.clear()
        await asyncio.sleep(0)  # an aborted transport closes its socket in the next iteration of the loop

    def _acquire(self, instance: Instance) -> "_WorkerConnection":
        """A connection for exclusive use, until `_release`."""
        worker = self._idle.pop(instance.authority, None)
        if worker is None:
            try:
                url = URL(f"{'https' if self._tls else 'http'}://{instance.authority}/")
            except ValueError as error:
                raise _unavailable(instance, f"its address is not a valid host: {error}") from error
            kept = KeptConnection((url.host or "", url.port or 0), self._buffer, tls=self._tls)
            worker = _WorkerConnection(
                kept, f" HTTP/1.1\r\nHost: {url.host_port_subcomponent}\r\n{self._fields}"
            )
        self._busy.add(worker)
        return worker

    def _release(self, authority: str, worker: "_WorkerConnection") -> None:
        self._busy.discard(worker)
        if not worker.connection.open:
            return
        # a held GET and a fetch may overlap; one idle connection is enough for the next of either
        if self._closed or authority in self._idle:
            worker.connection.close()
            return
        loop = asyncio.get_running_loop()
        worker.idle_since = loop.time()
        self._idle[authority] = worker
        if self._idle_timer is None:
            self._idle_timer = loop.call_later(_IDLE_TIMEOUT, self._close_idle)

    def _close_idle(self) -> None:
        loop = asyncio.get_running_loop()
        old = [
            authority
            for authority, worker in self._idle.items()
            if loop.time() - worker.idle_since >= _IDLE_TIMEOUT
        ]
        for authority in old:
            self._idle.pop(authority).connection.close()
        self._idle_timer = loop.call_later(_IDLE_TIMEOUT, self._close_idle) if self._idle else None


async def read_body(response: "aiohttp.ClientResponse", limit: int = METADATA_LIMIT) -> bytes:
    """The body of a single request over aiohttp; of a longer one, the first `limit` bytes and a little
    more, so that the caller sees that it is too long."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > limit:
            response.close()
            break
    return bytes(body)


def connection_problem(error: Exception) -> str:
    """Why a GET got no answer; where no connection was made, the operating system's reason."""
    error = getattr(error, "os_error", error)  # of aiohttp's `ClientConnectorError`
    if not isinstance(error, OSError) or not error.errno:
        return str(error) or type(error).__name__
    if isinstance(error, socket.gaierror | ssl.SSLError):
        return f"{error.strerror or error}"
    return f"cannot be reached: {os.strerror(error.errno)}"


def _check_token(token: str) -> str:
    """The token. Raises ValueError if no field value may hold it (RFC 9110 §5.5); the text does not show the token."""
    if not (token.isascii() and token.isprintable()):
        raise ValueError(
            "the bearer token has a character that no header field may have; expected printable ASCII"
        )
    return token


def _failure(
    instance: Instance, error: Exception, timeout: float, *, connected: bool
) -> MetadataUnavailableError:
    """The error for a GET without a usable answer; `connected`: a connection was established."""
    where = instance.id, instance.authority
    match error:
        case TimeoutError() if not error.errno:
            reason = f"no answer within {timeout:g} s"
            return WorkerUnreachableError(*where, reason, connected=connected, silent=True)
        case OSError():
            return WorkerUnreachableError(*where, connection_problem(error), connected=connected)
        case IncompleteResponseError():
            return WorkerUnreachableError(*where, str(error), connected=True)
        case UnicodeError():
            return MetadataUnavailableError(*where, f"its address is not a valid host: {error}")
    return MetadataUnavailableError(*where, f"not an answer that can be read: {error}", connected=True)


def _unavailable(instance: Instance, reason: str) -> MetadataUnavailableError:
    return MetadataUnavailableError(instance.id, instance.authority, reason)
