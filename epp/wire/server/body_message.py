"""A large piece of a request body out of its message without a copy; protobuf reads everything else. Pure."""

from functools import lru_cache
from typing import Final

from epp.ext_proc.length_delimited import head

LARGE: Final = 4096
"""Bytes of a message from which on a copy of the body costs more than to look here first."""
_REQUEST_BODY: Final = 4
"""The field of a ProcessingRequest."""
_BODY: Final = 1
"""The field of an HttpBody."""
_END: Final = b"\x10\x01"
"""HttpBody.end_of_stream = true, which follows the body."""


def read_body(message: bytes) -> tuple[memoryview, bool] | None:
    """The body and its `end_of_stream`, of a message that is nothing else and is written as every data plane does."""
    size = len(message)
    if (before := _before(size, 0)) and message.startswith(before):
        return memoryview(message)[len(before) :], False
    if message.endswith(_END) and (before := _before(size, len(_END))) and message.startswith(before):
        return memoryview(message)[len(before) : -len(_END)], True
    return None


@lru_cache(maxsize=1024)
def _before(size: int, after: int) -> bytes:
    """What such a message of `size` bytes begins with, where `after` of them follow the body; empty: there is none."""
    outer = _filling(_REQUEST_BODY, size)
    inner = _filling(_BODY, size - len(outer) - after)
    return outer + inner if outer and inner else b""


def _filling(field: int, size: int) -> bytes:
    """The head of a field that is `size` bytes long with it; empty where there is none, as its length gets longer."""
    heads = (head(field, size - length) for length in range(2, min(size, 6) + 1))
    return next((found for length, found in enumerate(heads, 2) if len(found) == length), b"")
