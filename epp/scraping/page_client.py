"""Asks one worker for one page, again and again, over one kept connection.

A look at a metrics page is one GET, known beforehand, of somebody who is asked up to twenty times a second.
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
"""As for metadata; 501 is llama-server's without --metrics."""


class PageError(Exception):
    """The page was not to be had; the text is the short cause."""


class NoPageError(PageError):
    """There is none: the worker is there, and says that this path is nothing it has (404, 405, 501)."""


class PageClient:
    """One page of one worker. `limit`: bytes of the page; `timeout`: seconds for one whole answer.

    `tls` is for a URL whose scheme is https; None: what Python verifies by default. `buffer` may be shared by all
    clients of one event loop.
    """

    def __init__(
        self, url: URL, buffer: bytearray, *, tls: ssl.SSLContext | None, timeout: float, limit: int
    ) -> None:
        tls_or_default: ssl.SSLContext | bool | None = (tls or True) if url.scheme == "https" else None
        self._kept = KeptConnection((url.host or "", url.port or 0), buffer, tls=tls_or_default)
        self._timeout = timeout
        self._reader = partial(ResponseReader, limit)
        self._request = _REQUEST.format(url.raw_path_qs, url.host_port_subcomponent).encode("ascii")

    async def get(self) -> bytearray:
        """The page; raises PageError when there is none, or not in time."""
        try:
            until = asyncio.get_running_loop().time() + self._timeout
            answer = await self._kept.send(self._request, self._reader, until)
        except TimeoutError as error:
            raise PageError(f"no whole answer within {self._timeout:g} s") from error
        except (OSError, ResponseError) as error:
            raise PageError(_in_words(error)) from error
        if answer.status in _NO_PAGE:
            raise NoPageError(f"status {answer.status}")
        if answer.status != 200:
            raise PageError(f"status {answer.status}, expected 200")
        return answer.body

    def close(self) -> None:
        """Drop the connection; a later `get` makes another one."""
        self._kept.abort()


def _in_words(error: OSError | ResponseError) -> str:
    """What the system says of a connection that failed, without its number; TLS and resolvers number otherwise."""
    if isinstance(error, ssl.SSLError | socket.gaierror | ResponseError) or not error.errno:
        return str(error) or type(error).__name__
    return os.strerror(error.errno)


_REQUEST: Final = "GET {} HTTP/1.1\r\nHost: {}\r\nAccept: text/plain\r\nAccept-Encoding: identity\r\nUser-Agent: adsum\r\n\r\n"
