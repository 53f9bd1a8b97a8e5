"""Fetches one page of one worker again and again, over one kept connection.

A metrics page is fetched up to 20 times a second by the same GET. So the request is formatted once and written as bytes:
a scrape takes 136 to 161 µs, through aiohttp's client 229 to 240 µs (benchmarks/README.md: scraping).
"""

import asyncio
import os
import socket
import ssl
from functools import partial
from typing import Final

from yarl import URL

from runtime.http1.connection import KeptConnection
from runtime.http1.response import ResponseError, ResponseReader

_NO_PAGE: Final = frozenset([404, 405, 501])
"""Statuses of a worker without a metrics page; 501 is llama-server's without --metrics."""


class PageError(Exception):
    """The page could not be fetched; the text is the short cause."""


class NoPageError(PageError):
    """The worker answers, but has no such page (404, 405, 501)."""


class PageClient:
    """A client for one page. `limit`: bytes of the page; `timeout`: seconds for one complete answer.

    `tls`: for https URLs; None: Python's default verification. All clients of one event loop may share `buffer`.
    """

    def __init__(
        self, url: URL, buffer: bytearray, *, tls: ssl.SSLContext | None, timeout: float, limit: int
    ) -> None:
        tls_or_default: ssl.SSLContext | bool | None = (tls or True) if url.scheme == "https" else None
        self._connection = KeptConnection((url.host or "", url.port or 0), buffer, tls=tls_or_default)
        self._timeout = timeout
        self._reader = partial(ResponseReader, limit)
        self._request = _REQUEST.format(url.raw_path_qs, url.host_port_subcomponent).encode("ascii")

    async def get(self) -> bytearray:
        """The page; raises `NoPageError` if the worker has none, `PageError` for any other failure."""
        try:
            deadline = asyncio.get_running_loop().time() + self._timeout
            answer = await self._connection.send(self._request, self._reader, deadline)
        except TimeoutError as error:
            raise PageError(f"no complete answer within {self._timeout:g} s") from error
        except (OSError, ResponseError) as error:
            raise PageError(_describe(error)) from error
        if answer.status in _NO_PAGE:
            raise NoPageError(f"status {answer.status}")
        if answer.status != 200:
            raise PageError(f"status {answer.status}, expected 200")
        return answer.body

    def close(self) -> None:
        """Close the connection; a later `get` opens another one."""
        self._connection.abort()


def _describe(error: OSError | ResponseError) -> str:
    """The system's reason without its number. TLS and resolver errors have numbers that `os.strerror` does not know."""
    if isinstance(error, ssl.SSLError | socket.gaierror | ResponseError) or not error.errno:
        return str(error) or type(error).__name__
    return os.strerror(error.errno)


_REQUEST: Final = "GET {} HTTP/1.1\r\nHost: {}\r\nAccept: text/plain\r\nAccept-Encoding: identity\r\nUser-Agent: adsum\r\n\r\n"
