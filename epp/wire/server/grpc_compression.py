"""Decompresses gzip messages, the one encoding that the Go picker registers too. Pure.

The rules are those of grpc's doc/PROTOCOL-HTTP2.md and doc/compression.md. Answers are sent uncompressed, which
compression.md allows whatever the client used.
"""

import zlib
from collections import deque
from typing import Final

from epp.wire.server.grpc_messages import GrpcStatus, Handler, StatusError

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
