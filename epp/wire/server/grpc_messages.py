"""gRPC over HTTP/2: messages out of the bytes of a stream, for a Handler; status. Pure.

The rules are those of grpc's PROTOCOL-HTTP2.md.
"""

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final, Protocol, TypeAlias

from epp.request.body import Buffer

Message: TypeAlias = bytes | list[Buffer]
"""Whole, or in pieces."""

_PREFIX: Final = struct.Struct(">BI")
_SMALL: Final = 1024
"""Pieces of fewer bytes are kept together: an object of its own would weigh more than what it holds."""
_MESSAGE_MOST: Final = 1000
"""Bytes of a grpc-message; it is for people."""


class GrpcStatus(IntEnum):
    """Those of the gRPC status codes that we send."""

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
    """One call of a method. What `message` and `half_closed` raise comes back as `fault`."""

    def message(self, payload: bytes) -> None:
        """A message of the client."""

    def half_closed(self) -> None:
        """The client sends no more."""

    def fault(self, error: Exception) -> None:
        """Something failed, StatusError where it is the client's doing: finish the call."""

    def closed(self, cause: str) -> None:
        """The call is over; told once."""


class MessageReader:
    """Length-prefixed messages, however the stream was cut; one longer than `limit` bytes raises StatusError.

    `held` is how many bytes of an unfinished message it keeps.
    """

    __slots__ = ("_flags", "_limit", "_missing", "_pieces", "held")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._flags: deque[bool] | None = None
        self._pieces: list[bytes | bytearray | memoryview] = []
        self._missing = 0  # bytes until the message is whole; 0 while even its prefix is not
        self.held = 0

    @property
    def unfinished(self) -> bool:
        """Whether the stream is within a message."""
        return bool(self.held or self._missing)

    def expect_compressed(self) -> deque[bool]:
        """Take compressed messages too; what is returned gets an entry for each message, whether it is one."""
        self._flags = deque()
        return self._flags

    def feed(self, chunk: bytes | memoryview) -> list[bytes]:
        """The messages that are whole with `chunk`."""
        missing = self._missing
        if not missing:
            return self._split(self._whole(chunk) if self.held else chunk, 0)
        if missing > len(chunk):
            self._hold(chunk)
            self._missing = missing - len(chunk)
            return []
        if missing == len(chunk):
            return [self._whole(chunk)]
        return [self._whole(chunk[:missing]), *self._split(chunk, missing)]

    def feed_until_whole(self, pieces: Iterator[memoryview]) -> list[bytes]:
        """Feed one piece after the other, up to the first that makes a message whole. They are only lent, until `keep`."""
        for piece in pieces:
            size = len(piece)
            if _SMALL <= size < self._missing:
                self._pieces.append(piece)
                self._missing -= size
                self.held += size
            elif messages := self.feed(piece):
                return messages
        return []

    def keep(self) -> None:
        """Copy what was lent."""
        pieces = self._pieces
        self._pieces = [bytes(piece) if isinstance(piece, memoryview) else piece for piece in pieces]

    def _split(self, chunk: bytes | memoryview, at: int) -> list[bytes]:
        messages: list[bytes] = []
        size = len(chunk)
        while size - at >= 5:
            compressed, length = _PREFIX.unpack_from(chunk, at)
            if compressed or length > self._limit or self._flags is not None:
                self._judge(compressed, length)
            at += 5
            if length > size - at:
                self._missing = length - (size - at)
                break
            message = chunk[at : at + length]
            messages.append(message if isinstance(message, bytes) else bytes(message))
            at += length
        if at < size:
            self._hold(chunk[at:])
        return messages

    def _whole(self, last: bytes | memoryview) -> bytes:
        whole = b"".join((*self._pieces, last))
        self._pieces.clear()
        self.held = self._missing = 0
        return whole

    def _hold(self, piece: bytes | memoryview) -> None:
        size = len(piece)
        self.held += size
        if size >= _SMALL:
            self._pieces.append(piece)
        elif self._pieces and isinstance(last := self._pieces[-1], bytearray):
            last += piece
        else:
            self._pieces.append(bytearray(piece))

    def _judge(self, compressed: int, length: int) -> None:
        if length > self._limit:
            text = f"a message of {length} bytes; at most {self._limit} are taken"
            raise StatusError(GrpcStatus.RESOURCE_EXHAUSTED, text)
        if compressed > 1 or self._flags is None:
            raise StatusError(GrpcStatus.INTERNAL, "a compressed message on a stream without grpc-encoding")
        self._flags.append(compressed == 1)


def in_pieces(messages: Sequence[Message]) -> list[Buffer]:
    """Messages as they travel, without a copy of what is large."""
    travelling: list[Buffer] = []
    for message in messages:
        if isinstance(message, bytes):
            travelling += (_PREFIX.pack(0, len(message)), message)
        else:
            travelling += (_PREFIX.pack(0, sum(map(len, message))), *message)
    return travelling


def prefixed(messages: Sequence[Message]) -> bytes:
    """The same in one piece."""
    return b"".join(in_pieces(messages))


def percent_encoded(message: str) -> bytes:
    """As `grpc-message` is written: printable ASCII but "%" as it is, cut where it is long."""
    written = [
        bytes((byte,)) if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte
        for byte in message.encode()
    ]
    return b"".join(written)[:_MESSAGE_MOST]
