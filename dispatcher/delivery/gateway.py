"""Sends one HTTP request to a target; returns the answer, or the reason why there is none.

The connections are `adsum.http1`'s: aiohttp's session would take 1.2 to 4 times the processor time (benchmarks/README.md,
"the dispatcher's HTTP client").
"""

import asyncio
import email.utils
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Self
from urllib.parse import urlsplit

from yarl import URL

from adsum.errors import os_reason
from adsum.http1.connection import ClientConnection
from adsum.http1.pool import RESEND_WITHIN, ConnectionPool, NotConnectedError
from adsum.http1.response import (
    HttpResponse,
    IncompleteResponseError,
    ResponseError,
    ResponseReader,
    ResponseTooLargeError,
)
from dispatcher.delivery.answer_limits import AnswerMemory, AnswerMemoryError, HeldAnswer

DROPPED_REASON_HEADER = "x-llm-d-request-dropped-reason"
MAX_ANSWER = 64 * 1024 * 1024
"""Bytes of the body of one answer; `AnswerMemory` limits their sum."""
MAX_CHUNKS: Final = 1024 * 1024
"""Chunks of the body of one answer: a streamed answer has one for each token."""


@dataclass(frozen=True, slots=True)
class GatewayAnswer:
    """A complete HTTP response. `retry_after` in seconds; `dropped_reason` is empty unless the picker dropped the request.

    `held`: what its body counts; to be released when the body is not needed any more.
    """

    status: int
    body: bytes
    retry_after: float | None = None
    dropped_reason: str = ""
    held: HeldAnswer | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """No complete response. `final`: every attempt would end so. `reached` False: no connection could be made.

    `disconnected`: the target ended the connection first.
    """

    reason: str
    final: bool = False
    reached: bool = True
    disconnected: bool = False


class Gateway:
    """Sends to one base URL over kept connections; an async context manager. `tls`: None, the system's authorities."""

    def __init__(
        self,
        url: str,
        *,
        tls: ssl.SSLContext | None = None,
        max_answer: int = MAX_ANSWER,
        memory: AnswerMemory | None = None,
        resend_within: float = RESEND_WITHIN,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._origin = URL(url).origin()
        self._prefix = urlsplit(url).path.rstrip("/")
        self._tls = tls
        self._memory = memory or AnswerMemory()
        self._resend_within = resend_within
        self._now = now
        self._read = partial(ResponseReader, max_answer, chunks=MAX_CHUNKS, encoded=True, strict=True)

    async def __aenter__(self) -> Self:
        tls = (self._tls or _system_tls()) if self._origin.scheme == "https" else None
        place = (self._origin.host or "", self._origin.port or 0)
        self._pool = ConnectionPool(place, tls=tls, resend_within=self._resend_within)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.aclose()

    async def post(
        self, path: str, headers: Mapping[str, str], body: bytes, timeout: float
    ) -> GatewayAnswer | NoAnswer:
        """POST `body` unchanged, within `timeout` seconds. Cancelling it closes the connection.

        `path` and `headers` (names in lower case) must be legal already, as `dispatcher.delivery.route` makes them.
        If a kept connection turns out to be closed within `resend_within` seconds, the request is sent again on a new one. A
        server may close an idle connection at any time, also while a request is in flight (RFC 9112, 9.5).
        """
        connections: list[ClientConnection] = []
        held = self._memory.arriving(lambda: connections[-1].abort())
        read = partial(self._read, received=held.receive)
        deadline = asyncio.get_running_loop().time() + timeout
        sending = self._pool.send(self._head(path, headers, body), body, read, connections.append, deadline)
        answer = await self._received(sending, held, timeout)
        if held.evicted:
            answer = NoAnswer(str(AnswerMemoryError(self._memory.max_bytes)))
        if isinstance(answer, NoAnswer):
            held.release()
            return answer
        held.complete(len(answer.body))
        return self._to_answer(answer, held)

    async def _received(
        self, sending: Awaitable[HttpResponse], held: HeldAnswer, timeout: float
    ) -> HttpResponse | NoAnswer:
        try:
            return await sending
        except NotConnectedError as error:
            return NoAnswer(
                f"no connection: {os_reason(error)}" if error.__cause__ else str(error), reached=False
            )
        except ResponseTooLargeError as error:
            return NoAnswer(f"the answer is larger than {error.limit} bytes", final=True)
        except (OSError, ResponseError) as error:
            if isinstance(error, TimeoutError) and not error.errno:
                return NoAnswer(f"no answer within {timeout:.3g} s")
            unreadable = isinstance(error, ResponseError) and not isinstance(error, IncompleteResponseError)
            return NoAnswer(_reason(error), disconnected=not unreadable)
        except BaseException:
            held.release()
            raise

    def _head(self, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
        """The head without its last, empty line."""
        host = headers.get("host", self._origin.host_port_subcomponent)
        given = "".join([f"{name}: {value}\r\n" for name, value in headers.items() if name != "host"])
        return (
            f"POST {self._prefix}{path} HTTP/1.1\r\nHost: {host}\r\n{given}Content-Length: {len(body)}\r\n"
        ).encode()

    def _to_answer(self, answer: HttpResponse, held: HeldAnswer) -> GatewayAnswer:
        fields = answer.fields()
        retry_after = fields.get("retry-after")
        wait = None if retry_after is None else parse_retry_after(retry_after, self._now())
        return GatewayAnswer(
            answer.status,
            bytes(answer.body),
            wait,
            _valid_text(fields.get(DROPPED_REASON_HEADER) or ""),
            held,
        )


def parse_retry_after(value: str, now: float) -> float | None:
    """Seconds from a Retry-After header, a number or a date (RFC 9110, 10.2.3): 0 for a past date, None if malformed.

    `now` is Unix time, for dates.
    """
    text = value.strip()
    if text.isascii() and text.isdigit():
        return float(text) if len(text) <= 9 else None
    # OverflowError: a year beyond those that a date can have
    try:
        moment = email.utils.parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None
    return max(0.0, moment - now)


def _system_tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _reason(error: OSError | ResponseError) -> str:
    match error:
        case IncompleteResponseError(has_begun=True):
            return "the connection ended before the answer did"
        case IncompleteResponseError():
            return "the connection ended"
        case AnswerMemoryError():
            return str(error)
        case ResponseError():
            return f"the answer cannot be read: {error}"
    return f"the connection ended: {os_reason(error)}"


def _valid_text(text: str) -> str:
    """The text without surrogates, which stand for bytes that are not UTF-8: no log or broker can encode them."""
    return text.encode("utf-8", "replace").decode()


LOG_AFTER = 1.0
"""Seconds without any answer until it is logged: a replica that restarts behind a load balancer takes less."""

log = logging.getLogger(__name__)


class OutageLog:
    """The outages of one target, shared by all queues that send to it. `after`: seconds until one is logged."""

    def __init__(
        self, target: str, after: float = LOG_AFTER, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._target = target
        self._after = after
        self._clock = clock
        self._since: float | None = None
        self._logged = False

    def unreachable(self, reason: str) -> None:
        """A request could not connect."""
        now = self._clock()
        if self._since is None:
            self._since = now
        elif not self._logged and now - self._since >= self._after:
            self._logged = True
            log.warning(
                "target %s cannot be reached, its requests wait and are tried again: %s", self._target, reason
            )

    def answered(self) -> None:
        """A request got an answer of any status."""
        if self._logged and self._since is not None:
            log.warning("target %s answers again, after %.0f s", self._target, self._clock() - self._since)
        self._since, self._logged = None, False
