"""One gRPC call on one HTTP/2 stream: bytes become messages for a Handler; its messages and status become frames."""

import logging
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from epp.request.body import MemoryBudget
from epp.request.rejection import Rejection, UnreadableError
from epp.wire.http2.header_blocks import Http2Request, literal
from epp.wire.http2.outgoing import Outgoing
from epp.wire.http2.streams import NULL_RECEIVER, Receiver, Stream
from epp.wire.server.grpc_messages import (
    ACCEPT_ENCODING,
    GZIP,
    GrpcStatus,
    Handler,
    InflatingHandler,
    Message,
    MessageReader,
    StatusError,
    percent_encoded,
    prefixed_pieces,
)

log = logging.getLogger(__name__)

_CONTENT_TYPE: Final = b"\x0f\x10\x10application/grpc"  # static table 31, not indexed
_RESPONSE: Final = b"\x88" + _CONTENT_TYPE  # :status 200
_ENCODINGS: Final = (b"identity", GZIP)
_GRPC_ONLY: Final = b"this port speaks gRPC only\n"
_PLAIN: Final = literal(b"content-type", b"text/plain") + literal(b"content-length", b"%d" % len(_GRPC_ONLY))
_NOT_GRPC: Final = (literal(b":status", b"405") + _PLAIN, literal(b":status", b"415") + _PLAIN)
"""The answers to a method other than POST, and to a POST that is not gRPC: 415 (PROTOCOL-HTTP2.md, Requests)."""
_ACCEPT_ENCODING: Final = literal(b"grpc-accept-encoding", ACCEPT_ENCODING)


class _NullHandler:
    """A Handler that ignores everything: for a call that is over."""

    __slots__ = ()

    def message(self, payload: bytes) -> None: ...
    def half_closed(self) -> None: ...
    def fault(self, error: Exception) -> None: ...
    def closed(self, cause: str) -> None: ...


_NULL_HANDLER: Final = _NullHandler()

Method = Callable[["Call"], Handler]


class Timer(Protocol):
    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], None]], Timer]


class Call:
    """Sends what a Handler answers; receives what the stream delivers."""

    __slots__ = (
        "_accounted",
        "_memory",
        "_outgoing",
        "_reader",
        "_started",
        "_stream",
        "cause",
        "finished",
        "handler",
        "outcomes",
        "timer",
    )

    handler: Handler

    def __init__(self, outgoing: Outgoing, stream: Stream, memory: MemoryBudget, limit: int) -> None:
        self._outgoing = outgoing
        self._stream = stream
        self._memory = memory
        self._reader = MessageReader(limit)
        self._accounted = 0
        self._started = False
        self.finished = False
        self.cause = "end of stream"
        self.timer: Timer | None = None
        self.outcomes = b""  # a header of the request

    @property
    def peer(self) -> str:
        """The address that the connection came from."""
        return self._outgoing.streams.peer

    def expect_compressed(self, limit: int) -> None:
        """Accept compressed messages, of at most `limit` bytes each when decompressed."""
        self.handler = InflatingHandler(self.handler, self._reader.expect_compressed(), limit)

    def begin(self) -> None:
        """The peer has asked for something: its stream may now last. Idempotent."""
        self._outgoing.streams.silent.pop(self._stream.id, None)

    def send(self, messages: Sequence[Message]) -> None:
        """Send messages in order; does nothing after `finish` or when the stream is gone."""
        if self.finished:
            return
        if not self._started:
            self._started = True
            self.begin()
            self._outgoing.streams.proven = True
            self._outgoing.send_headers(self._stream, _RESPONSE)
        self._outgoing.send(self._stream, prefixed_pieces(messages))

    def finish(self, status: GrpcStatus, message: str = "", *, cause: str = "end of stream") -> None:
        """End the call when everything is sent; the handler's `closed` then gets `cause`. Idempotent."""
        if self.finished:
            return
        self.finished = True
        self.cause = cause
        block = _TRAILERS_OK if status is GrpcStatus.OK else _trailers(status, message)
        # without messages: Trailers-Only, one header block for headers and status (PROTOCOL-HTTP2.md, Responses)
        self._outgoing.end(self._stream, block if self._started else _RESPONSE + block)

    def fail(self, error: Exception, what: str) -> None:
        """End the call because of an error; one that is no fault of the client is logged as the failure of `what`."""
        if isinstance(error, StatusError):
            self.finish(error.status, str(error))
        elif isinstance(error, UnreadableError):
            self.finish(GrpcStatus.INTERNAL, str(error))
        else:
            log.error("%s failed: %s\n%s", what, type(error).__name__, traceback_text(error))
            self.finish(GrpcStatus.INTERNAL, f"the picker failed: {type(error).__name__}")

    def data(self, chunk: bytes) -> None:
        if self.finished:
            return
        try:
            messages = self._reader.feed(chunk)
            if self._reader.buffered or self._accounted:
                self._account()
            message = self.handler.message
            for payload in messages:
                message(payload)
                if self.finished:
                    return
        except Exception as error:  # noqa: BLE001  # whatever failed, only this call ends
            self.handler.fault(error)

    def data_run(self, pieces: Iterator[memoryview]) -> None:
        """Parts of the body, as in Receiver. A message that is complete within them is never held."""
        if self.finished:
            return
        reader = self._reader
        try:
            while messages := reader.feed_until_message(pieces):
                if reader.buffered or self._accounted:
                    self._account()
                for payload in messages:
                    self.handler.message(payload)
                    if self.finished:
                        return
            reader.copy_lent()
            if reader.buffered or self._accounted:
                self._account()
        except Exception as error:  # noqa: BLE001  # only this call ends
            self.handler.fault(error)

    def ended(self) -> None:
        if self.finished:
            return
        try:
            if self._reader.unfinished:
                raise StatusError(GrpcStatus.INTERNAL, "the stream ended inside a message")
            self.handler.half_closed()
        except Exception as error:  # noqa: BLE001  # only this call ends
            self.handler.fault(error)

    def lost(self, cause: str) -> None:
        self.finished = True
        self._release(cause)

    def answered(self) -> None:
        self._release(self.cause)

    def close(self) -> None:
        if not self.finished:
            self.handler.fault(StatusError(GrpcStatus.UNAVAILABLE, "the picker is shutting down"))

    def expire(self) -> None:
        """The client's deadline has passed."""
        self.timer = None
        if not self.finished:
            self.handler.fault(StatusError(GrpcStatus.DEADLINE_EXCEEDED, "the deadline has passed"))

    def _account(self) -> None:
        """Count the unfinished message in the memory that all connections share."""
        more = self._reader.buffered - self._accounted
        if more > 0:
            try:
                self._memory.acquire(more)
            except Rejection as rejection:
                raise StatusError(GrpcStatus.RESOURCE_EXHAUSTED, rejection.message) from rejection
        else:
            self._memory.release(-more)
        self._accounted += more

    def _release(self, cause: str) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if self._accounted:
            self._memory.release(self._accounted)
            self._accounted = 0
        # breaks reference cycles, so that memory is freed at once
        handler, self.handler = self.handler, _NULL_HANDLER
        self._stream.receiver = NULL_RECEIVER
        try:
            handler.closed(cause)
        except Exception as error:  # noqa: BLE001  # only this call ends
            log.error(
                "a stream failed while it was closed: %s\n%s", type(error).__name__, traceback_text(error)
            )


class MethodRouter:
    """Finds the method of each request by its path, `/package.Service/Method`; `limit` is the largest message in bytes."""

    def __init__(
        self, methods: Mapping[bytes, Method], limit: int, memory: MemoryBudget, call_later: CallLater
    ) -> None:
        self._methods = dict(methods)
        self._limit = limit
        self._memory = memory
        self._call_later = call_later

    def accept(self, outgoing: Outgoing, stream: Stream, request: Http2Request) -> Receiver:
        """Begin the call that a request asks for, or answer with an error."""
        method = self._methods.get(request.path)
        if not _is_grpc(request):
            outgoing.send_headers(stream, _NOT_GRPC[request.method == b"POST"])
            outgoing.send(stream, (_GRPC_ONLY,))
            outgoing.end(stream, b"")
            return NULL_RECEIVER
        if method is None or request.encoding not in _ENCODINGS:
            outgoing.end(stream, _unimplemented(request, known=method is not None))
            return NULL_RECEIVER
        call = Call(outgoing, stream, self._memory, self._limit)
        call.outcomes = request.outcomes
        try:
            call.handler = method(call)
        except Exception as error:  # noqa: BLE001  # only this call ends
            log.error("a stream could not be opened: %s\n%s", type(error).__name__, traceback_text(error))
            outgoing.end(stream, _RESPONSE + _trailers(GrpcStatus.INTERNAL, "the picker failed"))
            return NULL_RECEIVER
        if request.encoding == GZIP:
            call.expect_compressed(self._limit)
        if request.timeout is not None:
            call.timer = self._call_later(request.timeout, call.expire)
        return call


def traceback_text(error: BaseException) -> str:
    """The traceback without the exception's message, which may quote a request."""
    cause = error.__cause__ or error
    return "".join(traceback.format_tb(cause.__traceback__)).rstrip()


def _is_grpc(request: Http2Request) -> bool:
    kind = request.content_type
    return request.method == b"POST" and (
        kind == b"application/grpc" or kind.startswith((b"application/grpc+", b"application/grpc;"))
    )


def _unimplemented(request: Http2Request, *, known: bool) -> bytes:
    """A Trailers-Only answer with status UNIMPLEMENTED (gRPC over HTTP/2, Responses)."""
    if known:
        text = "the grpc-encoding is not supported; expected identity or gzip"
        return _RESPONSE + _trailers(GrpcStatus.UNIMPLEMENTED, text) + _ACCEPT_ENCODING
    path = request.path.decode("utf-8", "replace")[:100]
    return _RESPONSE + _trailers(GrpcStatus.UNIMPLEMENTED, f"there is no method {path}")


def _trailers(status: GrpcStatus, message: str) -> bytes:
    block = literal(b"grpc-status", b"%d" % status)
    return block + literal(b"grpc-message", percent_encoded(message)) if message else block


_TRAILERS_OK: Final = _trailers(GrpcStatus.OK, "")
