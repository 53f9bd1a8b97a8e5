"""Fetches one page of one worker again and again, over one kept connection.

A metrics page is fetched up to 20 times a second by the same GET. So the request is formatted once and written as bytes:
a scrape takes 136 to 161 µs, through aiohttp's client 229 to 240 µs (benchmarks/README.md: scraping).
"""

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final

from yarl import URL

from adsum.http1.connection import KeptConnection
from adsum.http1.response import IncompleteResponseError, ResponseError, ResponseReader

_NO_PAGE: Final = frozenset([404, 405, 501])
"""Statuses of a worker without a metrics page; 501 is llama-server's without --metrics."""
NO_LISTENER: Final = frozenset([errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH])
"""Errors of a connect that say that nobody is there. A timeout is none: packets are lost on busy networks too."""


class PageError(Exception):
    """The page could not be fetched; the text is the short cause. `status`: of the HTTP answer, None without one."""

    def __init__(self, cause: str, status: int | None = None) -> None:
        super().__init__(cause)
        self.status = status


class NoPageError(PageError):
    """The worker answers, but has no such page (404, 405, 501)."""


class NoAnswerError(PageError):
    """No complete answer came."""


class OverdueError(NoAnswerError):
    """The worker accepted the request, and did not answer for as long as this client waits."""


class NoListenerError(NoAnswerError):
    """Nothing accepts connections there."""


_MOST_TIMEOUTS: Final = 8
"""A server may have lost a request, so another one is sent at last, but seldom: what is sent to a stopped process, and
given up, stays in its queue of connections, which is short."""


class PageClient:
    """A client for one page. `limit`: bytes of the page; `timeout`: seconds for one complete answer.

    `tls`: for https URLs; None: Python's default verification. All clients of one event loop may share `buffer`. `accept`:
    the media type that is asked for.
    """

    def __init__(
        self,
        url: URL,
        buffer: bytearray,
        *,
        tls: ssl.SSLContext | None,
        timeout: float,
        limit: int,
        accept: str = "text/plain",
    ) -> None:
        tls_or_default: ssl.SSLContext | bool | None = (tls or True) if url.scheme == "https" else None
        self._connection = KeptConnection((url.host or "", url.port or 0), buffer, tls=tls_or_default)
        self._timeout = timeout
        self.on_overdue: Callable[[], bool] | None = None
        """Called when `timeout` has passed without an answer, and again. Returns whether to wait on: a process that was
        stopped (SIGSTOP) answers the request that it holds as soon as it continues."""
        self._connection.on_deadline = self._later
        self._give_up_at = 0.0
        self._unanswered = 0
        self._reader = partial(ResponseReader, limit)
        self._request = _REQUEST.format(url.raw_path_qs, url.host_port_subcomponent, accept).encode("ascii")

    @property
    def lost(self) -> bool:
        """Whether the worker ended the kept connection."""
        return self._connection.lost

    def listen(self, on_lost: Callable[[Exception | None], object] | None) -> None:
        """Call `on_lost` when the worker ends the kept connection: with the error of a reset, with None if it closed it."""
        self._connection.on_lost = on_lost

    async def get(self) -> bytearray:
        """The page; raises `NoPageError` if the worker has none, `NoAnswerError` without an answer, else `PageError`."""
        now = asyncio.get_running_loop().time()
        self._give_up_at = now + self._timeout * min(2 << self._unanswered, _MOST_TIMEOUTS)
        try:
            answer = await self._connection.send(self._request, self._reader, now + self._timeout)
        except TimeoutError as error:
            self._unanswered = min(self._unanswered + 1, _MOST_TIMEOUTS)
            kind = OverdueError if self._connection.connected else NoAnswerError
            raise kind(self.overdue) from error
        except IncompleteResponseError as error:
            await self._check_listener()
            raise NoAnswerError(_describe(error)) from error
        except OSError as error:
            if self._connection.connected:
                await self._check_listener()
            raise _no_answer(error) from error
        except ResponseError as error:
            raise PageError(_describe(error)) from error
        self._unanswered = 0
        if answer.status in _NO_PAGE:
            raise NoPageError(f"status {answer.status}", answer.status)
        if answer.status != 200:
            raise PageError(f"status {answer.status}, expected 200", answer.status)
        return answer.body

    @property
    def overdue(self) -> str:
        """The cause that is reported when an answer is overdue."""
        return f"no complete answer within {self._timeout:g} s"

    def give_up(self) -> None:
        """Wait no longer for an overdue answer."""
        self._give_up_at = 0.0
        self._connection.time_out()

    def _later(self) -> float | None:
        now = asyncio.get_running_loop().time()
        if now >= self._give_up_at or self.on_overdue is None or not self.on_overdue():
            return None
        return min(now + self._timeout, self._give_up_at)

    async def connect(self) -> None:
        """Connect for the next `get`, unless the connection is open. Raises `NoAnswerError`."""
        deadline = asyncio.get_running_loop().time() + self._timeout
        try:
            await self._connection.connect(deadline)
        except TimeoutError as error:
            raise NoAnswerError(f"no connection within {self._timeout:g} s") from error
        except OSError as error:
            raise _no_answer(error) from error

    async def _check_listener(self) -> None:
        """A connection ended within an answer: raise `NoAnswerError` if the process ended too."""
        await self.connect()
        self.close()  # the next `get` shall not ask twice, as it would over a connection that was kept

    def close(self) -> None:
        """Close the connection; a later `get` opens another one."""
        self._connection.abort()


def _no_answer(error: OSError) -> NoAnswerError:
    kind = NoListenerError if error.errno in NO_LISTENER else NoAnswerError
    return kind(_describe(error))


def _describe(error: OSError | ResponseError) -> str:
    """The system's reason without its number. TLS and resolver errors have numbers that `os.strerror` does not know."""
    if isinstance(error, ssl.SSLError | socket.gaierror | ResponseError) or not error.errno:
        return str(error) or type(error).__name__
    return os.strerror(error.errno)


_REQUEST: Final = (
    "GET {} HTTP/1.1\r\nHost: {}\r\nAccept: {}\r\nAccept-Encoding: identity\r\nUser-Agent: adsum\r\n\r\n"
)
