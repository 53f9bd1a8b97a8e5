"""Finds the names of models in JSON that arrives in pieces: `model`, `response.model` and `message.model`. Pure.

The first is in answers and chunks of OpenAI's APIs, the second in the events of its Responses API, the third in those of
Anthropic's Messages API. Text between quotes is never taken for structure, and no other `model` is.
"""

import re
from enum import Enum, auto
from typing import Final

import msgspec

from epp.response.object_scanner import BELOW

_STRUCTURE: Final = re.compile(rb'["{}\[\]:,]')
_MEMBERS: Final = re.compile(rb'(?:\s*+"(?!model")[^"\\]*+"\s*+:\s*+(?:"[^"\\]*+"|[-+.\w]++)\s*+,)*+')
"""Whole members that are strings and numbers, each with its comma."""
_BRACKETS: Final = re.compile(rb'["{}\[\]]')
_TEXT: Final = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
"""The rest of a string, up to its closing quote, or to a lone backslash at the end of the piece."""
_MODEL: Final = b"model"
_OWNERS: Final = (b"response", b"message")
_MAX_KEY: Final = 64
"""Bytes of a key that are kept; none that counts is longer, not even with every letter escaped."""


class _Text(Enum):
    """What the scanner is inside of."""

    NONE = auto()
    KEY = auto()
    OTHER = auto()


class ModelFields:
    """The state between two pieces. Where a name is, is told for one piece at a time.

    JSON texts may follow each other. What is no JSON is harmless: then nothing is found, or not all.
    `steps`: that `find` may still make, one for each token that it looks at. Without any left it finds nothing more.
    """

    __slots__ = (
        "_depth",
        "_escaped",
        "_expects_key",
        "_inner",
        "_key",
        "_outer",
        "_text",
        "_watched",
        "steps",
    )

    def __init__(self) -> None:
        self.steps = 0
        self.reset()

    def reset(self) -> None:
        """Another JSON text begins."""
        self._depth = 0
        self._outer = False
        """The outermost value is an object."""
        self._inner = False
        """The value at depth 2 is the object of one of _OWNERS."""
        self._watched = False
        """The innermost value that is open may have a `model`."""
        self._expects_key = False
        self._key = b""
        self._text = _Text.NONE
        self._escaped = False

    def find(self, data: bytes, at: int, end: int) -> tuple[list[tuple[int, int]], int]:
        """The spans of names in `data[at:end]`, quotes included, and where an unfinished name begins, else `end`.

        The next call must begin with the bytes of the unfinished name.
        """
        spans: list[tuple[int, int]] = []
        while at < end and self.steps > 0:
            self.steps -= 1
            if self._text is not _Text.NONE:
                at = self._pass_text(data, at, end)
                continue
            at = self._pass_whole(data, at, end)
            found = (_STRUCTURE if self._watched else _BRACKETS).search(data, at, end)
            if found is None:
                break
            at = found.end()
            token = data[at - 1]
            if token != _QUOTE:
                self._pass_structure(token)
            elif self._watched and not self._expects_key and self._key == _MODEL:
                closed = self._closing_quote(data, at, end)
                if closed is None:
                    return spans, at - 1
                spans.append((at - 1, closed))
                at, self._key = closed, b""
            else:
                self._text = _Text.KEY if self._watched and self._expects_key else _Text.OTHER
                self._key = b"" if self._text is _Text.KEY else self._key
        return spans, end

    def skip_name(self) -> None:
        """The unfinished name is not awaited any more: the next call begins behind its opening quote."""
        self._text = _Text.OTHER

    def _pass_whole(self, data: bytes, at: int, end: int) -> int:
        """Go on behind what cannot have a name and is complete."""
        if not self._depth or (self._watched and not self._expects_key):
            return at
        found = (_MEMBERS if self._watched else BELOW).match(data, at, end)
        return at if found is None else found.end()

    def _closing_quote(self, data: bytes, at: int, end: int) -> int | None:
        """Where the string that begins at `at` is over, None: not in this piece."""
        stop = _end_of_text(data, at, end)
        return stop + 1 if stop < end and data[stop] == _QUOTE else None

    def _pass_text(self, data: bytes, at: int, end: int) -> int:
        begin = at
        if self._escaped:
            self._escaped = False
            at += 1
        stop = _end_of_text(data, at, end)
        if self._text is _Text.KEY and len(self._key) <= _MAX_KEY:
            self._key += data[begin : min(stop, begin + _MAX_KEY)]
        if stop == end:
            return end
        if data[stop] != _QUOTE:
            self._escaped = True
            if self._text is _Text.KEY and len(self._key) <= _MAX_KEY:
                self._key += b"\\"
            return stop + 1
        if self._text is _Text.KEY and b"\\" in self._key:
            self._key = _decoded(self._key)
        self._text = _Text.NONE
        return stop + 1

    def _pass_structure(self, token: int) -> None:
        if token == _COMMA:
            self._expects_key = True
        elif token == _COLON:
            self._expects_key = False
        elif token in _OPENING:
            self._open(is_object=token == _BRACE)
        else:
            self._depth = max(0, self._depth - 1)
            self._watched = (self._depth == 1 and self._outer) or (self._depth == 2 and self._inner)
            self._expects_key = False
            self._key = b""

    def _open(self, *, is_object: bool) -> None:
        self._depth += 1
        if self._depth == 1:
            self._outer = self._watched = is_object
        elif self._depth == 2:
            owned = self._outer and not self._expects_key and self._key in _OWNERS
            self._inner = self._watched = owned and is_object
        else:
            self._watched = False
        self._expects_key = True


_QUOTE, _COLON, _COMMA, _BRACE = b'":,{'
_OPENING: Final = frozenset(b"{[")


def _end_of_text(data: bytes, at: int, end: int) -> int:
    found = _TEXT.match(data, at, end)
    return at if found is None else found.end()


def _decoded(key: bytes) -> bytes:
    """A key without its escapes."""
    try:
        return msgspec.json.decode(b'"%s"' % key, type=str).encode()
    except (msgspec.DecodeError, UnicodeDecodeError):
        return key
