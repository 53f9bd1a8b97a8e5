"""The port in front of a decode worker: passes requests and answers on, and finds those with a prefill worker in them."""

import asyncio
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from aiohttp import HttpVersion11, web

from adsum.http1.connection import ClientConnection
from adsum.http1.response import ResponseError
from adsum.serving.acceptor import Acceptor, Connections
from adsum.serving.pages import PageConnection
from adsum.serving.sockets import connection_limit
from registry.disaggregation.answer import Answer
from registry.disaggregation.connectors import PATHS
from registry.disaggregation.disaggregated_request import (
    FALLBACK,
    PREFILL,
    AnsweredError,
    ClientRequest,
    DecodeError,
    DisaggregatedRequest,
    Parts,
    send_to_decode_worker,
)

_MAX_CONNECTIONS: Final = 8192
_IDLE_TIMEOUT: Final = 300.0
"""Seconds until an idle connection is closed, and one whose client does not read; as llm-d's sidecar has it."""
_BODY_TIMEOUT: Final = 60.0
"""Seconds without a byte of a request's body."""
_CUT: Final = 0.1
"""Seconds for requests that still run at the end; to aiohttp 0 is no limit."""
_MAX_HEAD: Final = 64 * 1024
_MAX_FIELDS: Final = 256


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """In bytes: of one request's body, and of all together. A body is held whole until it is sent nowhere any more."""

    one: int = 64 * 1024 * 1024
    all: int = 1024 * 1024 * 1024


class ProxyPort:
    """Serves from `start` to `aclose`. `parts.decode` is the model server behind this port."""

    def __init__(
        self,
        parts: Parts,
        listening: Sequence[socket.socket],
        limits: BodyLimits,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.port = int(listening[0].getsockname()[1])
        self.draining = False
        """Whether each answer ends its connection, so that the client goes elsewhere."""
        self._parts = parts
        self._limits = limits
        self._held = self._running = 0
        self._server = web.Server(self._handle, handler_cancellation=True)
        self._connections = Connections(connection_limit(_MAX_CONNECTIONS), _IDLE_TIMEOUT)
        self._acceptor = Acceptor(
            listening, self._connection, self._connections, name="the sidecar's port", tls=tls
        )

    def start(self) -> None:
        self._acceptor.start()

    @property
    def busy(self) -> bool:
        """Whether a request is being answered, or a leg of one whose client has gone still runs."""
        return bool(len(self._parts.work)) or self._running > 0

    def stop_accepting(self) -> None:
        self._acceptor.close()

    async def aclose(self) -> None:
        self._acceptor.close()
        await self._parts.work.aclose()
        await self._server.shutdown(_CUT)

    def _connection(self) -> "_ProxyConnection":
        return _ProxyConnection(
            self._server,
            self._connections,
            max_line_size=_MAX_HEAD,
            max_field_size=_MAX_HEAD,
            max_headers=_MAX_FIELDS,
            auto_decompress=False,
        )

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = cast(_ProxyConnection, request.protocol)
        connection.set_running(True)
        self._running += 1
        self._parts.metrics.in_flight += 1
        try:
            body = await self._read_body(request)
            try:
                return await self._respond(_read(request, body), connection)
            finally:
                self._held -= len(body)
        except _RefusedError as refused:
            return _problem(refused.status, str(refused), close=True)
        finally:
            self._running -= 1
            self._parts.metrics.in_flight -= 1
            connection.set_running(False)

    async def _respond(self, request: ClientRequest, connection: "_ProxyConnection") -> web.StreamResponse:
        answer = Answer(
            connection, close=self.draining or not request.keep_alive, can_chunk=request.is_http_1_1
        )
        has_prompt = request.method == "POST" and request.path in PATHS
        if has_prompt and request.values(PREFILL):
            problem = await self._run(DisaggregatedRequest(self._parts, request, answer), len(request.body))
        else:
            self._parts.metrics.alone += has_prompt
            problem = await _relay(self._parts, request, answer)
        if problem is None:
            return _ENDED if answer.close else _RELAYED
        if isinstance(problem, AnsweredError) and not answer.begun:
            return _passed_on(problem)
        if isinstance(problem, DecodeError) and not answer.begun:
            response = _problem(problem.status, str(problem))
            if problem.prefill is not None:
                response.headers[FALLBACK] = problem.prefill
            return response
        self._parts.limited_log.info("broken", "an answer ended before its end: %s", problem)
        answer.cut()
        return _ENDED

    async def _run(self, asked: DisaggregatedRequest, size: int) -> Exception | None:
        work = self._parts.work.start(asked.run(), "a request on two workers")
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if work.cancelled():
                return DecodeError(503, "this sidecar ends")
            asked.leave(work)
            raise
        finally:
            for one in (work, asked.prefilling):
                if one is not None and not one.done():
                    self._hold_until_done(one, size)

    def _hold_until_done(self, leg: "asyncio.Task[Any]", size: int) -> None:
        """A body that this leg still sends counts, also if nobody waits for an answer any more."""

        def release(_: object) -> None:
            self._held -= size

        self._held += size
        leg.add_done_callback(release)

    async def _read_body(self, request: web.BaseRequest) -> bytes:
        """Raises _RefusedError. What it returns counts in `_held`."""
        content = request.content
        if content.is_eof():
            whole = content.read_nowait()
            self._check_room(len(whole))
            self._held += len(whole)
            return whole
        body = bytearray()  # bounded: BodyLimits
        try:
            self._check_room(request.content_length or 0)
            if request.transport is not None and request.headers.get("expect", "").lower() == "100-continue":
                request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            async with asyncio.timeout(_BODY_TIMEOUT) as patience:
                while piece := await content.readany():
                    body += piece
                    self._held += len(piece)
                    self._check_room(len(body))
                    patience.reschedule(asyncio.get_running_loop().time() + _BODY_TIMEOUT)
            return bytes(body)
        except BaseException as error:
            self._held -= len(body)
            if isinstance(error, TimeoutError):
                raise _RefusedError(408, "the body did not come") from error
            if isinstance(error, web.RequestPayloadError):
                raise _RefusedError(400, "the body is broken off or malformed") from error
            raise

    def _check_room(self, length: int) -> None:
        """Raises _RefusedError if a body of this length is too long, or all are together."""
        if length > self._limits.one:
            raise _RefusedError(413, f"the body is larger than {self._limits.one} bytes")
        if self._held > self._limits.all:
            raise _RefusedError(503, "this sidecar holds as many bytes of requests as it may")


class _ProxyConnection(PageConnection):
    """Reads an answer no faster than its client does."""

    __slots__ = ("_paused_by_client", "_worker")

    def __init__(self, server: web.Server, connections: Connections, **options: Any) -> None:
        super().__init__(server, connections, **options)
        self._worker: ClientConnection | None = None
        self._paused_by_client = False

    def relay_from(self, worker: ClientConnection | None) -> None:
        if self._worker is not None and self._paused_by_client:
            self._worker.resume_reading()  # it may serve another request, or notices that it was closed
        self._worker = worker
        if worker is not None and self._paused_by_client:
            worker.pause_reading()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._paused_by_client = True
        if self._worker is not None:
            self._worker.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._paused_by_client = False
        if self._worker is not None:
            self._worker.resume_reading()


class _Relayed(web.StreamResponse):
    """The return value of a handler whose answer is on the wire already: aiohttp writes nothing of it."""

    def __init__(self, *, keep: bool) -> None:
        super().__init__()
        self._keep = keep

    @property
    def keep_alive(self) -> bool:
        return self._keep

    async def prepare(self, request: web.BaseRequest) -> None:
        return None

    async def write_eof(self, data: bytes | bytearray | memoryview = b"") -> None:
        return None


_RELAYED: Final = _Relayed(keep=True)
_ENDED: Final = _Relayed(keep=False)


class _RefusedError(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


async def _relay(parts: Parts, request: ClientRequest, answer: Answer) -> Exception | None:
    try:
        await send_to_decode_worker(parts, request, answer, request.body)
    except (DecodeError, OSError, ResponseError) as error:
        return error
    return None


def _read(request: web.BaseRequest, body: bytes) -> ClientRequest:
    target = request.raw_path
    return ClientRequest(
        request.method,
        target.encode("utf-8", "surrogateescape"),
        target.partition("?")[0],
        request.raw_headers,
        body,
        request.version >= HttpVersion11,
        request.version >= HttpVersion11 and request.keep_alive,
    )


def _problem(status: int, text: str, *, close: bool = False) -> web.Response:
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"error": {"message": text, "type": kind, "param": None, "code": status}}
    response = web.json_response(error, status=status)
    if close:
        response.force_close()
    return response


def _passed_on(answered: AnsweredError) -> web.Response:
    """The prefill worker's answer. Only the fields that say how to read it go on: the others were for this connection or worker."""
    answer, fields = answered.answer, answered.answer.fields()
    headers = {
        name: value
        for name in ("content-type", "content-encoding")
        if (value := fields.get(name)) is not None and value.isprintable()  # aiohttp writes no others
    }
    return web.Response(status=answer.status, body=bytes(answer.body), headers=headers)
