"""Fetches one document over HTTP for a gate; the error says in one line why there is none."""

import ssl
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from math import isinf
from time import time
from typing import Final

import aiohttp

from adsum.addresses import authority
from discovery.metadata.aiohttp_answer import connection_problem
from dispatcher.gates.credentials import GateSourceError, SourceCredentials

MAX_BYTES: Final = 8 * 1024 * 1024
"""Bytes of a document."""


@dataclass(frozen=True, slots=True)
class FetchedPage:
    """`served_at`: Unix seconds by the server's clock, from its Date header, else by ours."""

    body: bytes
    served_at: float


async def fetch(
    session: aiohttp.ClientSession,
    url: str,
    credentials: SourceCredentials,
    *,
    tls: ssl.SSLContext | bool,
    query: dict[str, str] | None = None,
) -> FetchedPage:
    """The document; raises GateSourceError for any status but 200.

    Redirects are not followed: the bearer token would go to a host that the operator did not name.
    """
    try:
        async with session.get(
            url, params=query, headers=credentials.headers(), ssl=tls, allow_redirects=False
        ) as answer:
            if answer.status != 200:
                raise GateSourceError(
                    f"{answer.url.origin()} answered with status {answer.status}, expected 200"
                )
            body = await _read_body(answer)
            return FetchedPage(body, _served_at(answer.headers.get("Date", "")))
    except aiohttp.ClientConnectorError as error:
        where = authority(error.host, error.port or 0)
        raise GateSourceError(f"{where}: {connection_problem(error)}") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise GateSourceError(str(error) or type(error).__name__) from error


async def _read_body(answer: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for piece in answer.content.iter_any():
        body += piece
        if len(body) > MAX_BYTES:
            raise GateSourceError(f"more than {MAX_BYTES} bytes")
    return bytes(body)


def sample_age(at: float, served_at: float) -> float:
    """Seconds from the Unix time `at` of a sample to when it was served; raises GateSourceError for a time in the future."""
    if not at <= served_at + MAX_CLOCK_SKEW or isinf(at):
        raise GateSourceError(f"its time is {at:.14g}, expected Unix seconds that are not in the future")
    return max(0.0, served_at - at)


MAX_CLOCK_SKEW: Final = 300.0
"""Seconds by which the clock that dated a sample may be ahead of the server's."""


def _served_at(date: str) -> float:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        # email.utils raises all of these for malformed dates
        return time()
