"""Messages that a client compressed with gzip, the one encoding that the Go picker registers as well. Pure.

The rules are those of grpc's PROTOCOL-HTTP2.md and compression.md. Answers go out as they are, which it allows.
"""

import zlib
from collections import deque
from typing import Final

from epp.wire.server.grpc_messages import GrpcStatus, Handler, StatusError

GZIP: Final = b"gzip"
ACCEPTED: Final = b"identity,gzip"
"""The value of `grpc-accept-encoding`."""
_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS


class Inflating:
    """A Handler behind messages that may be compressed; each is inflated when the one before it was handled.

    `flags`: of each message to come, whether it is compressed. `limit`: bytes of an inflated message.
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
    """What was compressed; raises StatusError where it is no gzip, or more than `limit` bytes."""
    inflater = zlib.decompressobj(_GZIP_WINDOW)
    try:
        message = inflater.decompress(packed, limit + 1)
    except zlib.error:
        raise StatusError(
            GrpcStatus.INTERNAL, "a message that is marked as compressed and is no gzip"
        ) from None
    if len(message) > limit:
        raise StatusError(
            GrpcStatus.RESOURCE_EXHAUSTED,
            f"a compressed message of more than {limit} bytes; no more are taken",
        )
    if not inflater.eof or inflater.unused_data:
        raise StatusError(GrpcStatus.INTERNAL, "a compressed message that is cut or goes on after its end")
    return message
