"""GETs of workers over kept connections: one kept for each place that is asked again, none for a place that is not."""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from yarl import URL

from discovery.errors import MetadataUnavailableError, WorkerUnreachableError
from discovery.instance import METADATA_LIMIT, Instance
from runtime.http1.answer import AnswerCutError, AnswerError, AnswerReader, HttpAnswer
from runtime.http1.connection import KeptConnection

_BUFFER: Final = 64 * 1024
"""Bytes taken in at once."""
_IDLE: Final = 15.0
"""Seconds after which a connection that nobody uses is closed: longer than any pause between two polls."""

_reader: Final = partial(AnswerReader, METADATA_LIMIT)


@dataclass(slots=True, eq=False)
class _Asked:
    """A place that is asked; `head`: what all questions to it have in common; `since`: idle, on the loop's clock."""

    connection: KeptConnection
    head: str
    since: float = 0.0


class Asker:
    """GETs of many workers at once. Redirects are not followed, proxies not asked. Must be closed."""

    def __init__(self, *, ssl_context: ssl.SSLContext | None, token: str | None) -> None:
        self._tls = ssl_context
        self._fields = "Accept: application/json\r\nAccept-Encoding: identity\r\nUser-Agent: adsum\r\n"
        if token:
            self._fields += f"Authorization: Bearer {_checked(token)}\r\n"
        self._buffer = bytearray(_BUFFER)
        self._idle: dict[str, _Asked] = {}
        self._busy: set[_Asked] = set()
        self._sweeping: asyncio.TimerHandle | None = None
        self._closed = False

    async def get(
        self,
        instance: Instance,
        path: str,
        fields: Mapping[str, str],
        timeout: float,
        connected: Callable[[], object] | None = None,
    ) -> HttpAnswer:
        """The answer, whatever its status; `connected` is called when a connection was made for it. `timeout` in seconds.

        Raises `MetadataUnavailableError` for what is no answer, and its subclass `WorkerUnreachableError` where
        nothing answered: its `connected` says whether somebody listens there.
        """
        if self._closed:
            raise _unavailable(instance, "its discovery is closed")
        asked = self._take(instance)
        more = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        request = f"GET {path}{asked.head}{more}\r\n".encode()
        try:
            until = asyncio.get_running_loop().time() + timeout
            return await asked.connection.ask(request, _reader, until, connected)
        except (OSError, AnswerError, UnicodeError) as error:
            raise _failure(instance, error, timeout, connected=asked.connection.connected) from error
        finally:
            self._give_back(instance.authority, asked)

    async def aclose(self) -> None:
        """Whoever asks from now on, or waits for an answer, gets `MetadataUnavailableError`."""
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        for asked in (*self._idle.values(), *self._busy):
            asked.connection.end()
        self._idle.clear()
        await asyncio.sleep(0)  # the loop closes what was dropped in its next turn

    def _take(self, instance: Instance) -> "_Asked":
        """A connection that is nobody else's until it is given back."""
        asked = self._idle.pop(instance.authority, None)
        if asked is None:
            try:
                url = URL(f"{'https' if self._tls else 'http'}://{instance.authority}/")
            except ValueError as error:
                raise _unavailable(instance, f"its address cannot be asked: {error}") from error
            kept = KeptConnection((url.host or "", url.port or 0), self._buffer, tls=self._tls)
            asked = _Asked(kept, f" HTTP/1.1\r\nHost: {url.host_port_subcomponent}\r\n{self._fields}")
        self._busy.add(asked)
        return asked

    def _give_back(self, authority: str, asked: "_Asked") -> None:
        self._busy.discard(asked)
        if not asked.connection.open:
            return
        if self._closed or authority in self._idle:
            asked.connection.end()
            return
        loop = asyncio.get_running_loop()
        asked.since = loop.time()
        self._idle[authority] = asked
        if self._sweeping is None:
            self._sweeping = loop.call_later(_IDLE, self._sweep)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        old = [place for place, asked in self._idle.items() if loop.time() - asked.since >= _IDLE]
        for place in old:
            self._idle.pop(place).connection.end()
        self._sweeping = loop.call_later(_IDLE, self._sweep) if self._idle else None


def connection_problem(error: Exception) -> str:
    """What kept a GET from an answer, in words; of a connection that was not made, what the system says."""
    if not isinstance(error, OSError) or not error.errno:
        return str(error) or type(error).__name__
    if isinstance(error, socket.gaierror | ssl.SSLError):
        return f"{error.strerror or error}"
    return f"cannot be reached: {os.strerror(error.errno)}"


def _checked(token: str) -> str:
    """The token itself; ValueError, without it, where no header field could hold it (RFC 9110 §5.5)."""
    if not (token.isascii() and token.isprintable()):
        raise ValueError(
            "the bearer token has a character that no header field may have; expected printable ASCII"
        )
    return token


def _failure(
    instance: Instance, error: Exception, timeout: float, *, connected: bool
) -> MetadataUnavailableError:
    """What it means for the worker that its answer did not come; `connected`: there was a connection to it."""
    where = instance.id, instance.authority
    match error:
        case TimeoutError() if not error.errno:
            reason = f"no answer within {timeout:g} s"
            return WorkerUnreachableError(*where, reason, connected=connected, silent=True)
        case OSError():
            return WorkerUnreachableError(*where, connection_problem(error), connected=connected)
        case AnswerCutError():
            return WorkerUnreachableError(*where, str(error), connected=True)
        case UnicodeError():
            return MetadataUnavailableError(*where, f"its address cannot be asked: {error}")
    return MetadataUnavailableError(*where, f"not an answer that can be read: {error}", connected=True)


def _unavailable(instance: Instance, reason: str) -> MetadataUnavailableError:
    return MetadataUnavailableError(instance.id, instance.authority, reason)
