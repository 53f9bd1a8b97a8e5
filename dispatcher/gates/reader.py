"""Asks for one document over HTTP and says in one line why there is none."""

import ssl
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from time import time
from typing import Final

import aiohttp

from dispatcher.gates.meter import SourceError

LARGEST: Final = 8 * 1024 * 1024
"""Bytes of a document."""


@dataclass(frozen=True, slots=True)
class Access:
    """How a source is reached. `bearer_token_file` is read anew at each request, since such tokens are renewed."""

    ca_file: str = ""
    bearer_token_file: str = ""

    def tls(self) -> ssl.SSLContext | bool:
        """For aiohttp; OSError when the file cannot be read or is no certificate."""
        return ssl.create_default_context(cafile=self.ca_file) if self.ca_file else True

    def headers(self) -> dict[str, str]:
        """Raises SourceError when there is no token in the file; the text does not quote it."""
        if not self.bearer_token_file:
            return {}
        try:
            token = Path(self.bearer_token_file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SourceError(f"no token in {self.bearer_token_file}: {type(error).__name__}") from error
        return {"Authorization": f"Bearer {token}"}


@dataclass(frozen=True, slots=True)
class Document:
    """`served_at`: when, in Unix seconds, by the server's own clock where it tells it."""

    body: bytes
    served_at: float


async def fetch(
    session: aiohttp.ClientSession,
    url: str,
    access: Access,
    *,
    tls: ssl.SSLContext | bool,
    query: dict[str, str] | None = None,
) -> Document:
    """The document; raises SourceError for everything that is no answer 200. No redirects."""
    try:
        async with session.get(
            url, params=query, headers=access.headers(), ssl=tls, allow_redirects=False
        ) as answer:
            if answer.status != 200:
                raise SourceError(f"{answer.url.origin()} answered with status {answer.status}, expected 200")
            body = await _whole(answer)
            return Document(body, _served_at(answer.headers.get("Date", "")))
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise SourceError(str(error) or type(error).__name__) from error


async def _whole(answer: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for piece in answer.content.iter_any():
        body += piece
        if len(body) > LARGEST:
            raise SourceError(f"more than {LARGEST} bytes")
    return bytes(body)


def _served_at(date: str) -> float:
    try:
        return parsedate_to_datetime(date).timestamp()
    except ValueError:
        return time()
