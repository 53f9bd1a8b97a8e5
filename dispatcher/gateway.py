"""One HTTP request to a target, and what came of it: an answer, or the reason why there is none."""

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from dispatcher.backoff import parse_retry_after
from dispatcher.connections import BrokenError, Connections
from dispatcher.http_response import MalformedError, Response, TooLargeError

DROPPED_REASON = "x-llm-d-request-dropped-reason"
MAX_ANSWER = 64 * 1024 * 1024
"""Bytes of one answer's body, at most."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole HTTP response; `retry_after` in seconds, `dropped_reason` empty where the target names none."""

    status: int
    body: bytes
    retry_after: float | None = None
    dropped_reason: str = ""


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """No whole response came; `final`: another attempt would end the same."""

    reason: str
    final: bool = False


class Gateway:
    """Sends to one base URL over kept connections; an async context manager. `tls` for https, where not the system's."""

    def __init__(
        self,
        url: str,
        *,
        tls: ssl.SSLContext | None = None,
        max_answer: int = MAX_ANSWER,
        now: Callable[[], float] = time.time,
    ) -> None:
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        host = parts.hostname or ""
        self._base = parts.path.rstrip("/")
        self._host = parts.netloc.rpartition("@")[2]
        self._now = now
        self._connections = Connections(
            host,
            parts.port or (443 if secure else 80),
            (tls or ssl.create_default_context()) if secure else None,
            max_answer,
        )

    async def __aenter__(self) -> Self:
        await self._connections.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._connections.__aexit__(kind, error, trace)

    async def post(
        self, path: str, headers: Mapping[str, str], body: bytes, timeout: float
    ) -> Answer | NoAnswer:
        """POST `body` as it is; at most `timeout` seconds. Cancelled: the connection is closed.

        `path` and `headers` (names in lower case) must be legal already, as `dispatcher.outgoing` makes them.
        """
        request = self._head(path, headers, len(body)) + body
        try:
            async with asyncio.timeout(timeout):
                response = await self._connections.exchange(request)
        except TimeoutError:
            return NoAnswer(f"no answer within {timeout:.3g} s")
        except TooLargeError as error:
            return NoAnswer(str(error), final=True)
        except (BrokenError, MalformedError) as error:
            return NoAnswer(str(error))
        return self._answer(response)

    def _head(self, path: str, headers: Mapping[str, str], length: int) -> bytes:
        lines = [f"POST {self._base}{path} HTTP/1.1"]
        if "host" not in headers:
            lines.append(f"host: {self._host}")
        lines.extend(f"{name}: {value}" for name, value in headers.items())
        lines.append(f"content-length: {length}\r\n\r\n")
        return "\r\n".join(lines).encode("latin-1")

    def _answer(self, response: Response) -> Answer:
        asked = response.headers.get("retry-after")
        wait = None if asked is None else parse_retry_after(asked, self._now())
        return Answer(response.status, response.body, wait, response.headers.get(DROPPED_REASON, ""))
