"""ext_proc as a method of our gRPC server: passes the messages of each stream to an Exchange and sends its answers.

A large piece of a request body is found in its message without a copy, and a piece of an answer, of which there is one for each
token, without protobuf, which reads all other messages.
"""

import logging
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from google.protobuf.message import DecodeError

from adsum.logs import RateLimitedLog
from epp.ext_proc.access_log_entry import BY_ACCESS_LOG
from epp.ext_proc.answers import Answer, field_head
from epp.ext_proc.exchange import Exchange, ExchangeError
from epp.ext_proc.outcome_ledger import OutcomeLedger
from epp.ext_proc.protocol import EXT_PROC
from epp.request.rejection import UnreadableError
from epp.wire.messages.ext_proc_pb2 import ProcessingRequest
from epp.wire.server.grpc_call import Call, Method, traceback_text
from epp.wire.server.grpc_messages import GrpcStatus, StatusError

log = logging.getLogger(__name__)


class ExternalProcessor:
    """The ext_proc service; `open_exchange` is called once per stream, `clock` returns monotonic seconds."""

    def __init__(
        self,
        open_exchange: Callable[[], Exchange],
        clock: Callable[[], float],
        stream_ended: Callable[[str, float], None] | None = None,
    ) -> None:
        self.open_exchange = open_exchange
        self.clock = clock
        self.stream_ended = stream_ended
        self.outcomes: OutcomeLedger | None = None
        self.limited_log = RateLimitedLog(log, clock)
        self.streams: set[_ExchangeHandler] = set()
        self.draining = False
        self.opened_at = -math.inf
        """When the last stream was opened; before the first: -inf."""

    def methods(self) -> dict[bytes, Method]:
        return {f"/{EXT_PROC}/Process".encode(): self._process}

    def drain(self) -> None:
        self.draining = True
        for stream in list(self.streams):
            stream.end_if_allowed()

    def _process(self, call: Call) -> "_ExchangeHandler":
        self.opened_at = self.clock()
        return _ExchangeHandler(self, call)


def _read(payload: bytes) -> ProcessingRequest:
    try:
        return ProcessingRequest.FromString(payload)
    except DecodeError:
        raise UnreadableError("a message that is no ProcessingRequest") from None


def _ignore(_: object) -> None:
    """Ignores answers after the end of the stream."""


_CODES: Final = {status: status.name.title().replace("_", "") for status in GrpcStatus if status}
"""The names of status codes in Go's libraries."""


_BY_ACCESS_LOG: Final = BY_ACCESS_LOG.encode()


class _ExchangeHandler:
    """Connects one gRPC call with its Exchange."""

    __slots__ = ("_behind", "_call", "_exchange", "_opened_at", "_service", "_status")

    def __init__(self, service: ExternalProcessor, call: Call) -> None:
        self._service = service
        self._call = call
        self._opened_at = service.opened_at
        self._status: GrpcStatus | None = None
        self._behind = b""
        """The bytes behind the last piece of the answer that protobuf read: metadata are the same in each message."""
        self._exchange = service.open_exchange()
        self._exchange.on_answer(self._answer, self.fault)
        if call.outcomes == _BY_ACCESS_LOG:
            self._exchange.await_outcome(service.outcomes)
        service.streams.add(self)

    def message(self, payload: bytes) -> None:
        now = self._service.clock()
        if payload.startswith(_RESPONSE_TAG) and (found := find_body(payload, RESPONSE_BODY, self._behind)):
            start, stop, ends = found
            if answers := self._exchange.feed_response_body(payload[start:stop], ends, now):
                self._call.send(answers)
            if not ends:
                return
        elif answers := self._other_message(payload, now):
            self._answer(answers)
        if self._service.draining or self._exchange.ends_early:
            self.end_if_allowed()

    def half_closed(self) -> None:
        self._call.finish(GrpcStatus.OK)

    def fault(self, error: Exception) -> None:
        """End the call because of an error. Once the response headers are answered, Envoy must see no status but OK."""
        if isinstance(error, StatusError):
            status, text, cause = error.status, str(error), "refused"
        elif isinstance(error, UnreadableError):
            status, text, cause = GrpcStatus.INTERNAL, str(error), "refused"
        elif isinstance(error, ExchangeError) and error.__cause__ is None:
            status, text, cause = GrpcStatus.INTERNAL, str(error), "fault"
            self._service.limited_log.warning(text, "an ext_proc stream ended: %s", text)
        else:
            known = isinstance(error, ExchangeError)
            text = str(error) if known else f"the picker failed: {type(error).__name__}"
            status, cause = GrpcStatus.INTERNAL, "fault"
            trace = {"trace": self._exchange.trace}
            log.error("an ext_proc stream ended: %s\n%s", text, traceback_text(error), extra=trace)
        if self._exchange.responded:
            self._call.finish(GrpcStatus.OK, cause=cause)
        else:
            self._status = self._status or status
            self._call.finish(status, text, cause=cause)

    def closed(self, cause: str) -> None:
        service = self._service
        service.streams.discard(self)
        now = service.clock()
        if service.stream_ended is not None:
            service.stream_ended(self._code(cause), now - self._opened_at)
        self._exchange.close(cause, now)
        self._exchange.on_answer(_ignore, _ignore)  # breaks a reference cycle

    def end_if_allowed(self) -> None:
        """End the stream if nothing is left to answer: during a drain, or because nobody reads what would come."""
        if self._exchange.may_end:
            self._call.finish(GrpcStatus.OK)

    def _other_message(self, payload: bytes, now: float) -> list[Answer]:
        self._call.begin()
        if len(payload) >= LARGE and (found := find_body(payload, REQUEST_BODY)):
            start, stop, ends = found
            return self._exchange.feed_body(memoryview(payload)[start:stop], ends, now)
        message = _read(payload)
        if payload.startswith(_RESPONSE_TAG):
            self._behind = metadata_behind(payload, message.response_body.ByteSize())
        return self._exchange.feed(message, now)

    def _code(self, cause: str) -> str:
        """Envoy resets each stream that it needs no longer: for one that is concluded, that is the usual end."""
        if self._status is not None:
            return _CODES[self._status]
        return "OK" if self._exchange.concluded or cause == "end of stream" else "Canceled"

    def _answer(self, answers: list[Answer]) -> None:
        """Send answers; what the data plane has not read is from now on held and counted by the stream, not the exchange."""
        self._call.send(answers)
        self._exchange.sent()


LARGE: Final = 4096
"""Bytes of a message from which on protobuf's copy of the body costs more than this search."""
REQUEST_BODY: Final = 4
"""`ProcessingRequest.request_body`, the number of the field."""
RESPONSE_BODY: Final = 5
"""`ProcessingRequest.response_body`, the number of the field."""
_RESPONSE_TAG: Final = field_head(RESPONSE_BODY, 0)[:1]
_METADATA: Final = 8
"""`ProcessingRequest.metadata_context`, the number of the field."""
_BODY: Final = 1
"""`HttpBody.body`, the number of the field."""
_END: Final = b"\x10\x01"
"""`HttpBody.end_of_stream = true`, encoded; follows the body."""


def find_body(message: bytes, field: int, behind: bytes = b"") -> tuple[int, int, bool] | None:
    """Where the body of a message is, and its `end_of_stream`, if the message has only these, in the order that protobuf writers
    use, and then `behind`; else None."""
    stop = len(message) - len(behind)
    if behind and not message.endswith(behind):
        return None
    if (before := _before(field, stop, 0)) and message.startswith(before):
        return len(before), stop, False
    if (
        message.endswith(_END + behind)
        and (before := _before(field, stop, len(_END)))
        and message.startswith(before)
    ):
        return len(before), stop - len(_END), True
    return None


def metadata_behind(message: bytes, size: int) -> bytes:
    """The metadata that alone follow a body of `size` bytes, all its fields counted; empty if there is something else or nothing."""
    behind = message[len(field_head(RESPONSE_BODY, size)) + size :]
    head = _field_header(_METADATA, len(behind))
    return behind if head and behind.startswith(head) else b""


@lru_cache(maxsize=4096)
# bounded: numbers
def _before(field: int, size: int, after: int) -> bytes:
    """The first bytes of such a message of `size` bytes with `after` bytes behind the body; empty if none can be."""
    outer = _field_header(field, size)
    inner = _field_header(_BODY, size - len(outer) - after)
    return outer + inner if outer and inner else b""


def _field_header(field: int, size: int) -> bytes:
    """The tag and length of a field that takes `size` bytes in all; empty if no length fits (its varint grows)."""
    heads = (field_head(field, size - length) for length in range(2, min(size, 6) + 1))
    return next((found for length, found in enumerate(heads, 2) if len(found) == length), b"")
