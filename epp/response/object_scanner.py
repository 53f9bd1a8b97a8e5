"""Finds the `usage` object in a JSON document that comes in pieces, without keeping the document. Pure.

A document may have 100 MB, so only the object itself is kept. It is looked for where the APIs have it: `usage`,
`response.usage` (OpenAI's responses, streamed) and `message.usage` (Anthropic's messages, streamed). The same name further
down, as in the `tools` that an answer repeats, is something else, hence the depth. Strings are told apart, since an answer's
text may be JSON itself. A document is not checked: one that is broken has a usage or none.
"""

import re
from typing import Final

MAX_OBJECT: Final = 4096
"""Bytes of a usage object; a longer one is not kept. Real ones have up to 500."""
_MAX_KEY: Final = 16
"""Bytes of a string that are kept, to compare it with a key."""
_PARENTS: Final = (b"response", b"message")

_QUOTE, _COLON, _COMMA, _BRACE = b'":,{'
_CLOSING: Final = b"}]"

# Possessive, so that nothing is read twice to look for another match.
_STRING_REST: Final = re.compile(rb'(?:[^"\\]++|\\[\x00-\xff])*+')
"""A string up to its closing quote, to a backslash that ends the piece, or to the end of the piece."""
_TOKEN: Final = re.compile(rb'["{}\[\]:,]')
_FLAT: Final = rb'[^"{}\[\]]++|"(?:[^"\\]++|\\[\x00-\xff])*+"'


def _nested(levels: int) -> bytes:
    """Matches values whose objects and lists are nested at most so deep."""
    inner = rb"(?:" + (_nested(levels - 1) if levels > 1 else _FLAT) + rb")*+"
    return _FLAT + rb"|\{" + inner + rb"\}|\[" + inner + rb"\]"


BELOW: Final = re.compile(rb"(?:" + _nested(3) + rb")*+")
"""All that is complete in the piece, down to three levels; the scanner goes through the rest token by token."""


class ObjectScanner:
    """`feed` it the pieces of one document. `found`: the last usage object so far, as text; None: there was none."""

    __slots__ = (
        "_begin",
        "_depth",
        "_escaped",
        "_in_parent",
        "_in_string",
        "_kept",
        "_key",
        "_outside",
        "_text",
        "found",
    )

    def __init__(self) -> None:
        self.found: bytes | None = None
        self._depth = 0
        self._in_parent = False
        """Inside the object of one of _PARENTS."""
        self._in_string = False
        self._escaped = False
        """The last piece ended with a backslash."""
        self._text = b""
        """The last string, or its beginning."""
        self._key = b""
        """Of the value that comes next."""
        self._kept: bytearray | None = None
        """The usage object that is being read; before `_begin` of this piece."""
        self._begin = 0
        self._outside = 0
        """The depth around that object."""

    def feed(self, data: bytes) -> None:
        at, end = 0, len(data)
        while at < end:
            at = self._read_string(data, at) if self._in_string else self._read_token(data, at)
        self._keep(data, end)
        self._begin = 0

    @property
    def _searched(self) -> bool:
        """Whether the object that the scanner is in may have the key."""
        return self._depth < 2 or (self._depth == 2 and self._in_parent)

    def _read_token(self, data: bytes, at: int) -> int:
        """Go on to the next token, and behind it."""
        token = _TOKEN.search(data, at) if self._searched else None
        below = None if self._searched else BELOW.match(data, at)
        at = token.start() if token is not None else below.end() if below is not None else len(data)
        if at == len(data):
            return at
        byte = data[at]
        if byte == _QUOTE:
            self._in_string, self._text = True, b""
        elif byte == _COLON:
            self._key = self._text
        elif byte == _COMMA:
            self._key = b""
        elif byte in _CLOSING:
            self._close(data, at + 1)
        else:
            self._open(byte, at)
        return at + 1

    def _open(self, byte: int, at: int) -> None:
        if byte == _BRACE and self._depth and self._searched:
            if self._key == b"usage":
                self._kept, self._begin, self._outside = bytearray(), at, self._depth
            elif self._depth == 1:
                self._in_parent = self._key in _PARENTS
        self._key = b""
        self._depth += 1

    def _close(self, data: bytes, end: int) -> None:
        self._depth = max(0, self._depth - 1)
        self._key = b""
        if self._depth == 1:
            self._in_parent = False
        if self._depth == self._outside:
            self._keep(data, end)
            if self._kept is not None:
                self.found, self._kept = bytes(self._kept), None

    def _keep(self, data: bytes, end: int) -> None:
        """Keep this piece up to `end`, if it belongs to a usage object."""
        if self._kept is not None:
            self._kept += data[self._begin : min(end, self._begin + MAX_OBJECT + 1)]
            if len(self._kept) > MAX_OBJECT:
                self._kept = None

    def _read_string(self, data: bytes, at: int) -> int:
        """Go on behind the string, or to the end of the piece."""
        if self._escaped:
            self._escaped = False
            if len(self._text) < _MAX_KEY:
                self._text += b"\\"  # an escaped key is another key
            at += 1
        rest = _STRING_REST.match(data, at)
        stop = at if rest is None else rest.end()
        if len(self._text) < _MAX_KEY:
            self._text += data[at : min(stop, at + _MAX_KEY)]
        if stop < len(data):
            self._in_string = data[stop] != _QUOTE
            self._escaped = self._in_string
            stop += 1
        return stop
