"""One request: its two legs, what happens if one fails, and what must still happen once the client has gone.

    header or body is wrong ──────────────────┐
    shared storage: decode worker ─ has enough ─────────────────────► answer
                    │ refuses                 │
                    ▼                         ▼
    prefill worker ── fails ──► decode worker alone (a fallback) ───► answer
      │           └── 4xx, which is the client's ───────────────────► answer
      ▼ answers
    decode worker, with what the prefill worker answered ───────────► answer
      │ the client has gone
      └► until the decode worker has the blocks; or ask it only to fetch them, so that they are freed

SGLang's workers meet by themselves: both are asked at the same time, and the request fails if prefill does.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from uuid import uuid4

from adsum.errors import os_reason
from adsum.http1.connection import HostPort
from adsum.http1.pool import ConnectionPool, NotConnectedError
from adsum.http1.relay import RelayReader
from adsum.http1.response import HttpResponse, ResponseError
from adsum.logs import RateLimitedLog
from adsum.quoting import quoted
from adsum.tasks import BackgroundTasks, cancel_and_wait
from registry.disaggregation.allowed_workers import read_target
from registry.disaggregation.answer import Answer, Probe
from registry.disaggregation.connectors import (
    Connector,
    Fields,
    NotApartError,
    SequentialConnector,
    SglangConnector,
    SharedStorageConnector,
    encode,
    read_object,
)
from registry.disaggregation.metrics import SidecarMetrics
from registry.disaggregation.prefill import PrefillError, PrefillLeg, PrefillWorkers

PREFILL: Final = b"x-prefiller-host-port"
REQUEST_ID: Final = b"x-request-id"
FALLBACK: Final = "x-adsum-prefill-fallback"
"""A field of the answer: the decode worker computed the prompt too, for this reason."""
GRACE: Final = 1.0
"""Seconds for the answer of a prefill worker whose client has gone. vLLM reads of a closed connection only between two steps: a
prompt whose last step runs already would be staged, and nobody would know where."""
HANDOVER: Final = 5.0
"""Seconds that the decode worker has to take a request over whose client has gone. From then on its engine tells the prefill
worker that the blocks are not needed, also if the request is aborted (vLLM, `request_finished` of NIXL's scheduler part)."""
RELEASE: Final = 30.0
"""Seconds for a request that only fetches the blocks: vLLM's `kv_lease_duration`, after which they are free anyway."""
_CONTROL: Final = frozenset(
    {PREFILL, b"x-encoder-hosts-ports", b"x-data-parallel-host-port", b"x-kv-cache-source-host-port"}
)
_NOT_PASSED: Final = _CONTROL | {
    *(b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"),
    *(b"content-length", b"expect"),
}


class DecodeError(Exception):
    """The decode worker gave no answer; `status` is for the client. `prefill`: why, if it is the prefill worker's fault."""

    def __init__(self, status: int, text: str, prefill: str | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.prefill = prefill


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request as it came, with its whole body. `fields`: names and values as received."""

    method: str
    target: bytes
    path: str
    fields: tuple[tuple[bytes, bytes], ...]
    body: bytes
    is_http_1_1: bool
    keep_alive: bool

    def values(self, name: bytes) -> list[str]:
        return [value.decode("latin-1") for key, value in self.fields if key.lower() == name]

    def head(
        self, length: int, own: bytes = b"", *, version: bytes = b"1.1", is_read_here: bool = False
    ) -> bytes:
        """The request line and the fields for a worker, without the blank line. `is_read_here`: the answer is, so it must not be
        encoded.
        """
        named = {
            one.strip().lower()
            for key, value in self.fields
            if key.lower() == b"connection"
            for one in value.split(b",")  # bounded: a field, at most 64 KiB
        }
        if is_read_here:
            named.add(b"accept-encoding")
        lines = [b"%s %s HTTP/%s\r\n" % (self.method.encode(), self.target, version)]
        for key, value in self.fields:
            lower = key.lower()
            if lower not in _NOT_PASSED and lower not in named:
                lines.append(b"%s: %s\r\n" % (key, value))
        lines.append(own)
        if version == b"1.1" and not self.is_http_1_1 and not self.values(b"host"):
            # a client of HTTP/1.0 need not say it, a worker of HTTP/1.1 insists (RFC 9112 §3.2)
            lines.append(b"host:\r\n")
        if length or self.method in ("POST", "PUT", "PATCH"):
            lines.append(b"content-length: %d\r\n" % length)
        return b"".join(lines)


@dataclass(slots=True)
class Parts:
    """The parts that all requests of one port share. `work`: the tasks that outlive their client."""

    decode: ConnectionPool
    prefill: PrefillWorkers
    connector: Connector
    metrics: SidecarMetrics
    work: BackgroundTasks = field(default_factory=BackgroundTasks)
    limited_log: RateLimitedLog = field(
        default_factory=lambda: RateLimitedLog(logging.getLogger("registry"), most=10)
    )


class AnsweredError(Exception):
    """An answer of the prefill worker that is the client's: its request is wrong."""

    def __init__(self, answer: HttpResponse) -> None:
        super().__init__(f"HTTP {answer.status}")
        self.answer = answer


async def send_to_decode_worker(
    parts: Parts, request: ClientRequest, answer: Answer | Probe, body: bytes, own: bytes = b""
) -> None:
    """Send a body to the decode worker, and its answer to the client. `own`: header fields of ours.

    Raises DecodeError, or OSError and ResponseError if the client has a part of the answer.
    """
    version = b"1.1" if request.is_http_1_1 else b"1.0"
    head = request.head(len(body), own, version=version, is_read_here=isinstance(answer, Probe))
    reader: Callable[[], RelayReader] = partial(RelayReader, answer, bodiless=request.method == "HEAD")
    try:
        await parts.decode.send(head, body, reader, answer.over)
    except NotConnectedError as error:
        why = os_reason(error) if error.__cause__ else str(error)
        raise DecodeError(
            503, f"the model server behind this sidecar accepts no connection: {why}"
        ) from error
    except (OSError, ResponseError) as error:
        if answer.begun:
            raise
        text = str(error) if isinstance(error, ResponseError) else os_reason(error)
        raise DecodeError(502, f"the model server behind this sidecar gave no answer: {text}") from error
    answer.end()


class DisaggregatedRequest:
    """A request for which a prefill worker was named: `run` it in a task of its own, `leave` when its client has gone."""

    def __init__(self, parts: Parts, request: ClientRequest, answer: Answer) -> None:
        self._parts = parts
        self._request = request
        self._answer = answer
        self.prefilling: asyncio.Task[AnsweredError | DecodeError | None] | None = None
        """A leg that outlives `run` (SGLang)."""
        self._leg: PrefillLeg | None = None
        """While a prefill worker is asked."""
        self._holds_blocks = False
        """Whether a prefill worker may hold blocks for the decode worker from here on."""
        self._gone = asyncio.Event()
        self._own = b"" if request.values(REQUEST_ID) else b"x-request-id: %s\r\n" % str(uuid4()).encode()

    async def run(self) -> Exception | None:
        """Until the client has its answer, or no blocks stay behind for one that has gone.

        Returns what went wrong: AnsweredError, DecodeError, or the OSError or ResponseError that broke the answer off.
        """
        try:
            await self._send()
        except (AnsweredError, DecodeError, OSError, ResponseError) as error:
            if not self._gone.is_set():
                return error
            self._parts.limited_log.info(
                "abandoned", "the rest of a request whose client has gone: %s", error
            )
        return None

    def leave(self, work: "asyncio.Task[Exception | None]") -> None:
        """The client has gone. Ends `work`, which runs this request, unless blocks would stay behind."""
        self._gone.set()
        self._answer.leave()
        if self._leg is None:
            if not self._holds_blocks:
                work.cancel()
            return
        self._leg.abandoned = True
        if self._parts.connector.holds_blocks:
            asyncio.get_running_loop().call_later(GRACE, self._give_up, work)
        else:
            work.cancel()

    def _give_up(self, work: "asyncio.Task[Exception | None]") -> None:
        """Close the connection to a prefill worker that has not begun to answer: it frees the blocks then."""
        if self._leg is not None and not self._leg.answered and not self._holds_blocks:
            work.cancel()

    async def _send(self) -> None:
        try:
            target, fields = self._read()
            self._parts.prefill.check(target)
            connector = self._parts.connector
            if isinstance(connector, SglangConnector):
                await self._prefill_while_decoding(connector, target, fields)
            else:
                await self._prefill_then_decode(connector, target, fields)
        except (PrefillError, NotApartError) as error:
            if self._gone.is_set():
                return
            self._parts.metrics.fallbacks += 1
            self._parts.metrics.reasons[error.reason] += 1
            self._log(error.reason, error, "the decode worker computes it")
            self._answer.fields = f"{FALLBACK}: {error.reason}\r\n".encode()
            await self._decode(self._request.body)

    def _read(self) -> tuple[HostPort, Fields]:
        try:
            target = read_target(self._request.values(PREFILL))
        except ValueError as error:
            raise NotApartError("header", f"the header is wrong: {error}") from error
        fields = read_object(self._request.body)
        if fields is None:
            raise NotApartError("body", "the body is no JSON object")
        return target, fields

    async def _prefill_then_decode(
        self, connector: SequentialConnector, target: HostPort, fields: Fields
    ) -> None:
        path = self._request.path
        asks_first = isinstance(connector, SharedStorageConnector) and connector.decodes_first(fields)
        if asks_first and await self._is_answered_by_decode(fields):
            self._parts.metrics.alone += 1
            return
        answer = await self._ask(target, connector.prefill_body(path, fields))
        found = read_object(bytes(answer.body))
        if found is None:
            raise PrefillError("answer", "its answer is no JSON object")
        prefilled = connector.prefilled(path, fields, found)
        if prefilled.finished:
            raise AnsweredError(
                HttpResponse(answer.status, answer.head, bytearray(prefilled.body), reusable=False)
            )
        self._holds_blocks = connector.holds_blocks
        self._parts.metrics.apart += 1
        if not self._gone.is_set():
            self._answer.cached_tokens = prefilled.cached_tokens
            await (
                self._until_taken_over(prefilled.body) if self._holds_blocks else self._decode(prefilled.body)
            )
        elif self._holds_blocks:
            self._parts.metrics.released += 1
            async with asyncio.timeout(RELEASE):
                await self._decode(prefilled.short_body)

    async def _ask(self, target: HostPort, body: bytes, at_least: float = 0.0) -> HttpResponse:
        """Returns the answer, which is no error. Raises PrefillError, or AnsweredError for an error that is the client's."""
        leg = self._leg = PrefillLeg()
        head = self._request.head(len(body), self._own, is_read_here=True)
        try:
            with self._parts.metrics.prefilling():
                answer = await self._parts.prefill.ask(target, head, body, leg, at_least)
        finally:
            self._leg = None
        if answer.status >= 400:
            raise AnsweredError(answer)
        return answer

    async def _until_taken_over(self, body: bytes) -> None:
        """The decode leg. If the client goes, it runs until the decode worker has the blocks, or has had time to say that
        it does not want them.
        """
        leg = asyncio.ensure_future(self._decode(body))
        gone = asyncio.ensure_future(self._gone.wait())
        try:
            await asyncio.wait((leg, gone), return_when=asyncio.FIRST_COMPLETED)
            if not leg.done():
                await asyncio.wait(
                    (leg, self._answer.taken), timeout=HANDOVER, return_when=asyncio.FIRST_COMPLETED
                )
            if leg.done():
                await leg
        finally:
            await cancel_and_wait(leg, gone)

    async def _decode(self, body: bytes) -> None:
        await send_to_decode_worker(self._parts, self._request, self._answer, body, self._own)

    async def _prefill_while_decoding(
        self, connector: SglangConnector, target: HostPort, fields: Fields
    ) -> None:
        """Both legs at the same time. The prefill worker's is never cancelled: it ends by itself, with the decode worker's
        or without it. Raises AnsweredError, DecodeError.
        """
        prefill_body, decode_body = connector.bodies(self._request.path, fields, target[0])
        self._holds_blocks = True
        prefilling = self._parts.work.start(self._prefill_leg(target, prefill_body), "a prefill leg")
        self.prefilling = prefilling
        decoding = asyncio.ensure_future(self._until_taken_over(decode_body))
        try:
            await asyncio.wait((prefilling, decoding), return_when=asyncio.FIRST_COMPLETED)
            problem = prefilling.result() if prefilling.done() else None
            if problem is not None and not decoding.done() and not self._answer.begun:
                # the decode worker would wait for blocks that do not come, and cannot compute them itself
                self._parts.metrics.failed += isinstance(problem, DecodeError)
                raise problem
            self._parts.metrics.apart += 1
            await decoding
        finally:
            await cancel_and_wait(decoding)

    async def _prefill_leg(self, target: HostPort, body: bytes) -> AnsweredError | DecodeError | None:
        """Returns what went wrong, as a leg that outlives its request raises to nobody."""
        try:
            await self._ask(target, body, SglangConnector.LEG_TIMEOUT)
        except AnsweredError as error:
            return error
        except PrefillError as error:
            self._parts.metrics.reasons[error.reason] += 1
            self._log(error.reason, error, "the request fails")
            return DecodeError(503, f"no prefill worker computed the prompt: {error}", error.reason)
        return None

    async def _is_answered_by_decode(self, fields: Fields) -> bool:
        """Whether the decode worker had enough of the prompt: then the client has its answer."""
        probe = Probe(self._answer)
        await send_to_decode_worker(self._parts, self._request, probe, encode(fields), self._own)
        return not probe.refused

    def _log(self, cause: str, error: Exception, outcome: str) -> None:
        where = quoted(", ".join(self._request.values(PREFILL)), 100)
        self._parts.limited_log.warning(cause, "no prefill at %s: %s; %s", where, error, outcome)
