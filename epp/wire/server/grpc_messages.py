"""gRPC over HTTP/2: splits the bytes of a stream into messages; the status codes; what a Handler is. Pure.

The rules are those of grpc's doc/PROTOCOL-HTTP2.md and doc/compression.md. gzip is the one encoding that the Go picker
registers too. Answers are sent uncompressed, which compression.md allows whatever the client used.
"""

import struct
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final, Protocol, TypeAlias

from epp.request.body import Buffer

Message: TypeAlias = bytes | list[Buffer]
"""One message, as one object or in pieces."""

_PREFIX: Final = struct.Struct(">BI")
"""Compressed-Flag and Message-Length."""
_SMALL: Final = 1024
"""Smaller pieces are joined while they wait: an object of its own would take more memory than its bytes."""
_MAX_GRPC_MESSAGE: Final = 1000
"""Bytes of a grpc-message. Clients may limit all trailers to 8 KiB."""


class GrpcStatus(IntEnum):
    """The gRPC status codes that we send."""

    OK = 0
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class StatusError(Exception):
    """Ends a call with a status other than OK."""

    def __init__(self, status: GrpcStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class Handler(Protocol):
    """Handles one call of a method. Exceptions of `message` and `half_closed` are passed to `fault`."""

    def message(self, payload: bytes) -> None:
        """The client sent a message."""

    def half_closed(self) -> None:
        """The client has sent its last message."""

    def fault(self, error: Exception) -> None:
        """Finish the call because of an error; StatusError if the client caused it."""

    def closed(self, cause: str) -> None:
        """The call is over. Called once."""


class MessageReader:
    """Splits a stream into its length-prefixed messages; raises StatusError for one of more than `limit` bytes.

    DATA frames and messages are not aligned. `buffered`: bytes of the unfinished message that are held.
    """

    __slots__ = ("_flags", "_limit", "_missing", "_pieces", "buffered")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._flags: deque[bool] | None = None
        self._pieces: list[bytes | bytearray | memoryview] = []
        self._missing = 0  # bytes until the message is complete; 0 while its prefix is incomplete
        self.buffered = 0

    @property
    def unfinished(self) -> bool:
        """Whether the stream is within a message."""
        return bool(self.buffered or self._missing)

    def expect_compressed(self) -> deque[bool]:
        """Accept compressed messages too; the returned deque gets an entry per message: whether it is compressed."""
        self._flags = deque()
        return self._flags

    def feed(self, chunk: bytes | memoryview) -> list[bytes]:
        """The messages that `chunk` completes."""
        missing = self._missing
        if not missing:
            size = len(chunk)
            # the common case of small messages: a frame for each
            if size >= 5 and not self.buffered and self._flags is None and isinstance(chunk, bytes):
                compressed, length = _PREFIX.unpack_from(chunk)
                if length == size - 5 and not compressed and length <= self._limit:
                    return [chunk[5:]]
            return self._split(self._join(chunk) if self.buffered else chunk, 0)
        if missing > len(chunk):
            self._buffer(chunk)
            self._missing = missing - len(chunk)
            return []
        if missing == len(chunk):
            return [self._join(chunk)]
        return [self._join(chunk[:missing]), *self._split(chunk, missing)]

    def feed_until_message(self, pieces: Iterator[memoryview]) -> list[bytes]:
        """Feed pieces up to the first that completes a message. Earlier ones are kept without a copy until `copy_lent`."""
        for piece in pieces:
            size = len(piece)
            if _SMALL <= size < self._missing:
                self._pieces.append(piece)
                self._missing -= size
                self.buffered += size
            elif messages := self.feed(piece):
                return messages
        return []

    def copy_lent(self) -> None:
        """Copy the kept pieces, before their buffer is used for the next read."""
        pieces = self._pieces
        self._pieces = [bytes(piece) if isinstance(piece, memoryview) else piece for piece in pieces]

    def _split(self, chunk: bytes | memoryview, at: int) -> list[bytes]:
        messages: list[bytes] = []
        size = len(chunk)
        while size - at >= 5:
            compressed, length = _PREFIX.unpack_from(chunk, at)
            if compressed or length > self._limit or self._flags is not None:
                self._check_prefix(compressed, length)
            at += 5
            if length > size - at:
                self._missing = length - (size - at)
                break
            message = chunk[at : at + length]
            messages.append(message if isinstance(message, bytes) else bytes(message))
            at += length
        if at < size:
            self._buffer(chunk[at:])
        return messages

    def _join(self, last: bytes | memoryview) -> bytes:
        message = b"".join((*self._pieces, last))
        self._pieces.clear()
        self.buffered = self._missing = 0
        return message

    def _buffer(self, piece: bytes | memoryview) -> None:
        size = len(piece)
        self.buffered += size
        if size >= _SMALL:
            self._pieces.append(piece)
        elif self._pieces and isinstance(last := self._pieces[-1], bytearray):
            last += piece
        else:
            self._pieces.append(bytearray(piece))

    def _check_prefix(self, compressed: int, length: int) -> None:
        if length > self._limit:
            text = f"a message of {length} bytes is larger than the limit of {self._limit}"
            raise StatusError(GrpcStatus.RESOURCE_EXHAUSTED, text)
        if compressed > 1 or self._flags is None:
            raise StatusError(GrpcStatus.INTERNAL, "a compressed message on a stream without grpc-encoding")
        self._flags.append(compressed == 1)


def prefixed_pieces(messages: Sequence[Message]) -> list[Buffer]:
    """Each message with its prefix, as pieces: nothing is copied."""
    if len(messages) == 1 and isinstance(first := messages[0], bytes):
        return [_PREFIX.pack(0, len(first)), first]
    pieces: list[Buffer] = []
    for message in messages:
        if isinstance(message, bytes):
            pieces += (_PREFIX.pack(0, len(message)), message)
        else:
            pieces += (_PREFIX.pack(0, sum(map(len, message))), *message)
    return pieces


def prefixed(messages: Sequence[Message]) -> bytes:
    """Each message with its prefix, as one bytes object."""
    return b"".join(prefixed_pieces(messages))


def percent_encoded(message: str) -> bytes:
    """Encode a `grpc-message`: printable ASCII except "%" stays as it is. Cut to its longest size."""
    written = [
        bytes((byte,)) if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte
        for byte in message.encode()
    ]
    return b"".join(written)[:_MAX_GRPC_MESSAGE]


GZIP: Final = b"gzip"
ACCEPT_ENCODING: Final = b"identity,gzip"
"""The value of `grpc-accept-encoding`."""
# 16: a gzip header and trailer, not zlib's (zlib manual, inflateInit2)
_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS


class InflatingHandler:
    """A Handler that decompresses messages for another one, each only after the one before was handled.

    `flags`: whether each message to come is compressed. `limit`: bytes of a decompressed message.
    """

    __slots__ = ("_flags", "_handler", "_limit")

    def __init__(self, handler: Handler, flags: deque[bool], limit: int) -> None:
        self._handler = handler
        self._flags = flags
        self._limit = limit

    def message(self, payload: bytes) -> None:
        self._handler.message(inflate(payload, self._limit) if self._flags.popleft() else payload)

    def half_closed(self) -> None:
        self._handler.half_closed()

    def fault(self, error: Exception) -> None:
        self._handler.fault(error)

    def closed(self, cause: str) -> None:
        self._handler.closed(cause)


def inflate(packed: bytes, limit: int) -> bytes:
    """Decompress a message; raises StatusError if it is not gzip or has more than `limit` bytes."""
    inflater = zlib.decompressobj(_GZIP_WINDOW)
    try:
        # never more in memory, whatever the ratio: a zip bomb
        message = inflater.decompress(packed, limit + 1)
    except zlib.error:
        raise StatusError(GrpcStatus.INTERNAL, "a message is marked as compressed but is not gzip") from None
    if len(message) > limit:
        raise StatusError(
            GrpcStatus.RESOURCE_EXHAUSTED,
            f"a compressed message has more than {limit} bytes, which is the limit",
        )
    if not inflater.eof or inflater.unused_data:
        raise StatusError(GrpcStatus.INTERNAL, "a compressed message is truncated, or data follows its end")
    return message
