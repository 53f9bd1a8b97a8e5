"""Replaces escapes of unpaired surrogates in JSON, which is legal (RFC 8259 section 8.2), but which msgspec refuses. Pure.

Each is read as U+FFFD, as most model servers do. The body that goes to the worker is not changed.
"""

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Buffer: TypeAlias = bytes | bytearray | memoryview

MAX_BYTES: Final = 8 * 1024 * 1024
"""Bytes of a body that is searched; the search takes about ten times as much memory."""


def replace_lone_surrogates(body: Buffer) -> bytes | None:
    """The body with U+FFFD for each unpaired surrogate, of the same length; None if it has none or is too large."""
    if len(body) > MAX_BYTES:
        return None
    data = bytes(body)
    if b"\\ud" not in data and b"\\uD" not in data:
        return None
    # blank escaped backslashes: the second one does not begin an escape; a zero byte never occurs in valid JSON
    units = np.frombuffer(data.replace(b"\\\\", b"\0\0") + bytes(6), np.uint8)
    at = np.flatnonzero(units[:-6] == ord("\\"))
    at = at[(units[at + 1] == ord("u")) & (units[at + 2] | 0x20 == ord("d"))]
    third = _hex_values(units[at + 3])
    whole = (third >= 8) & (_hex_values(units[at + 4]) >= 0) & (_hex_values(units[at + 5]) >= 0)
    at, low = at[whole], third[whole] >= 12
    # a high surrogate directly followed by a low one is a pair
    pairs = np.flatnonzero(~low[:-1] & low[1:] & (at[1:] - at[:-1] == 6))
    lone = np.ones(len(at), np.bool_)
    lone[pairs] = lone[pairs + 1] = False
    at = at[lone]
    if not len(at):
        return None
    repaired = np.frombuffer(bytearray(data), np.uint8)
    for offset, letter in enumerate(b"fffd", 2):
        repaired[at + offset] = letter
    return repaired.tobytes()


def _hex_values(letters: NDArray[np.uint8]) -> NDArray[np.int8]:
    """The values of hexadecimal digits, -1 for anything else."""
    values: NDArray[np.int8] = _HEX_VALUES[letters]
    return values


_HEX_VALUES: Final = np.full(256, -1, np.int8)
for _value, _letter in enumerate(b"0123456789abcdef"):
    _HEX_VALUES[[_letter, *bytes((_letter,)).upper()]] = _value
