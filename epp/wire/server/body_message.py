"""Finds a large piece of a request body in its message without a copy; protobuf reads all other messages. Pure."""

from functools import lru_cache
from typing import Final

from epp.ext_proc.length_delimited import field_head

LARGE: Final = 4096
"""Bytes of a message from which on protobuf's copy of the body costs more than this search."""
_REQUEST_BODY: Final = 4
"""`ProcessingRequest.request_body`, the number of the field."""
_BODY: Final = 1
"""`HttpBody.body`, the number of the field."""
_END: Final = b"\x10\x01"
"""`HttpBody.end_of_stream = true`, encoded; follows the body."""


def read_body(message: bytes) -> tuple[memoryview, bool] | None:
    """The body and `end_of_stream` of a message that holds only these, in the order that protobuf writers use; else None."""
    size = len(message)
    if (before := _before(size, 0)) and message.startswith(before):
        return memoryview(message)[len(before) :], False
    if message.endswith(_END) and (before := _before(size, len(_END))) and message.startswith(before):
        return memoryview(message)[len(before) : -len(_END)], True
    return None


@lru_cache(maxsize=1024)
# bounded: numbers
def _before(size: int, after: int) -> bytes:
    """The first bytes of such a message of `size` bytes with `after` bytes behind the body; empty if none can be."""
    outer = _field_header(_REQUEST_BODY, size)
    inner = _field_header(_BODY, size - len(outer) - after)
    return outer + inner if outer and inner else b""


def _field_header(field: int, size: int) -> bytes:
    """The tag and length of a field that takes `size` bytes in all; empty if no length fits (its varint grows)."""
    heads = (field_head(field, size - length) for length in range(2, min(size, 6) + 1))
    return next((found for length, found in enumerate(heads, 2) if len(found) == length), b"")
