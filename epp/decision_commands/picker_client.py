"""Asks a running picker over HTTP."""

import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
from yarl import URL

from adsum.errors import os_reason
from adsum.quoting import quoted
from discovery.errors import AdsumError
from discovery.metadata.connections import connection_problem, read_body

_MOST_BYTES: Final = 64 * 1024 * 1024
_TIMEOUT: Final = 60.0
_LONGEST_TOKEN: Final = 4096
_EXPECTED: Final = "expected the metrics port of a picker that runs; name it with --picker"


class PickerError(AdsumError):
    """The picker does not answer, or not with what was asked for."""


class PickerClient:
    def __init__(self, url: URL, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._session = session

    async def get(self, path: str, query: Mapping[str, str]) -> Any:
        return await self._ask("GET", path, query, None)

    async def post(self, path: str, query: Mapping[str, str], body: bytes) -> Any:
        return await self._ask("POST", path, query, body)

    @contextmanager
    def understood(self) -> Iterator[None]:
        """Around what reads an answer: that of another program, or of another version, may lack anything."""
        try:
            yield
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise PickerError(
                f"{self._url} answered with other JSON than a picker of this version; {_EXPECTED}"
            ) from error

    async def _ask(self, method: str, path: str, query: Mapping[str, str], body: bytes | None) -> Any:
        url = self._url / path.lstrip("/")
        try:
            request = self._session.request(method, url.with_query(query), data=body, allow_redirects=False)
            async with request as answer:
                status, content = answer.status, await read_body(answer, _MOST_BYTES)
        except TimeoutError:
            raise PickerError(f"{self._url} did not answer within {_TIMEOUT:g} s; {_EXPECTED}") from None
        except (aiohttp.ClientError, OSError, UnicodeError) as error:
            problem = f"{self._url}: {connection_problem(error)}; {_EXPECTED}"
            raise PickerError(problem) from error
        if len(content) > _MOST_BYTES:
            raise PickerError(f"{self._url} answered with more than {_MOST_BYTES} bytes; ask for less")
        return self._read(status, content, path)

    def _read(self, status: int, content: bytes, path: str) -> Any:
        try:
            document = msgspec.json.decode(content)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            document = None
        if status == 200 and isinstance(document, dict):
            return document
        if isinstance(document, dict) and isinstance(document.get("error"), str):
            raise PickerError(f"the picker at {self._url} says: {document['error'][:500]}")
        if status == 401:
            if "Authorization" in self._session.headers:
                raise PickerError(
                    f"{self._url} does not accept the token of --token-file; expected the one of its --debug-token-file"
                )
            raise PickerError(f"{self._url} asks for a token; give it with --token-file")
        text = content[:500].decode(errors="replace").strip()
        # bounded: 500 bytes
        said = f": {' '.join(text.split()).rstrip('.')}" if status in (403, 503) and text else ""
        if status == 403 and said:  # it says itself what to do
            raise PickerError(f"{self._url} refuses{said}")
        raise PickerError(f"{self._url} answered {path} with {status}{said}; {_EXPECTED}")


def _base(url: str) -> URL:
    """Raises ValueError for anything but http://host:port."""
    try:
        base = URL(url)
        right = (
            base.scheme in ("http", "https")
            and bool(base.host)
            and base in (base.origin(), base.origin() / "")
        )
    except ValueError:  # a port out of range, half of an IPv6 address
        right = False
    if not right:
        scheme, colon, rest = url.partition("://")
        shown = quoted(scheme + colon + rest.rpartition("@")[2], 100)  # without a password
        raise ValueError(f"{shown} is not the URL of a picker; expected http://host:port")
    return base.origin()


def _authorization(token_file: Path | None) -> dict[str, str]:
    if token_file is None:
        return {}
    token = token_file.read_text(errors="replace").strip()
    if not token or not token.isascii() or not token.isprintable() or len(token) > _LONGEST_TOKEN:
        raise ValueError(f"{token_file} holds no token; expected one line of text")
    return {"Authorization": f"Bearer {token}"}


def _trust(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # ssl.SSLError is one
        raise ValueError(f"--ca-file {ca_file} cannot be used: {os_reason(error)}; expected PEM") from error


@asynccontextmanager
async def picker_client(
    url: str, token_file: Path | None, ca_file: Path | None
) -> AsyncIterator[PickerClient]:
    """Raises ValueError for a wrong URL, OSError for files."""
    base = _base(url)
    headers = _authorization(token_file)
    connector = aiohttp.TCPConnector(ssl=_trust(ca_file) if base.scheme == "https" else True)
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout, connector=connector) as session:
        yield PickerClient(base, session)
