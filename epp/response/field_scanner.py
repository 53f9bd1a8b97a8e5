"""Finds the values of one field in JSON that arrives in pieces, without keeping the document. Pure.

The APIs have `model` and `usage` in the outermost object, in its `response` (the events of OpenAI's Responses API) and in its
`message` (those of Anthropic's Messages API). The same name further down, as in the `tools` that an answer repeats, is
something else, hence the depth. Text between quotes is never taken for structure, since an answer's text may be JSON itself.
"""

import re
import sys
from enum import Enum, auto
from typing import Final, TypeAlias

import msgspec

Span: TypeAlias = tuple[int, int]

# Possessive, so that nothing is read twice to look for another match.
_STRUCTURE: Final = re.compile(rb'["{}\[\]:,]')
_BRACKETS: Final = re.compile(rb'["{}\[\]]')
_TEXT: Final = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
"""The rest of a string, up to its closing quote, or to a lone backslash at the end of the piece."""
_FLAT: Final = rb'[^"{}\[\]]++|"(?:[^"\\]++|\\[\x00-\xff])*+"'


_MEMBERS: Final = rb'(?:\s*+"(?!%s")[^"\\]*+"\s*+:\s*+(?:"[^"\\]*+"|[-+.\w]++)\s*+,)*+'
"""Whole members that are strings and numbers, each with its comma, up to one of that name."""


def _nested(levels: int) -> bytes:
    """Matches values whose objects and lists are nested at most so deep."""
    inner = rb"(?:" + (_nested(levels - 1) if levels > 1 else _FLAT) + rb")*+"
    return _FLAT + rb"|\{" + inner + rb"\}|\[" + inner + rb"\]"


_BELOW: Final = re.compile(rb"(?:" + _nested(3) + rb")*+")
"""All that is complete in the piece, down to three levels; the scanner goes through the rest token by token."""
_BEFORE_MODEL: Final = re.compile(_MEMBERS % b"model")
_BEFORE_USAGE: Final = re.compile(_MEMBERS % b"usage")
_OWNERS: Final = (b"response", b"message")
_STEPS_AT_ONCE: Final = 20_000
"""Tokens that are looked at in one piece, at most: about 10 ms, in which nothing else is picked."""
_BYTES_FOR_A_STEP: Final = 8
"""Bytes of an answer that allow for one more token. Real answers need fewer: what cannot have the field is passed as a whole."""
_MAX_KEY: Final = 64
"""Bytes of a key that are kept; none that counts is longer, not even with every letter escaped."""


class _Text(Enum):
    """The kind of text that the scanner is inside of."""

    NONE = auto()
    KEY = auto()
    OTHER = auto()


class FieldScanner:
    """The state between two pieces. It reports where a value is for one piece at a time.

    `usage`: values of `usage` that are objects, nested at most four levels deep; otherwise values of `model` that are
    strings, and a name with escapes counts too. JSON texts may follow each other. Text that is no JSON is harmless:
    then nothing is found, or not all. `steps`: that `find` may still make, one for each token that it looks at. Without
    any left it finds nothing more. They are limited from the first `allow` on.
    """

    __slots__ = (
        "_begins",
        "_depth",
        "_ends",
        "_escaped",
        "_expects_key",
        "_field",
        "_inner",
        "_key",
        "_members",
        "_outer",
        "_text",
        "_watched",
        "steps",
    )

    def __init__(self, *, usage: bool = False) -> None:
        self._field = b"usage" if usage else b"model"
        self._members = _BEFORE_USAGE if usage else _BEFORE_MODEL
        self._begins, self._ends = (_BRACE, _CLOSING_BRACE) if usage else (_QUOTE, _QUOTE)
        self.steps = sys.maxsize
        self.reset()

    def allow(self, size: int) -> None:
        """This many more bytes of an answer have come."""
        self.steps = min(self.steps + size // _BYTES_FOR_A_STEP + 1, _STEPS_AT_ONCE)

    def reset(self) -> None:
        """Another JSON text begins."""
        self._depth = 0
        self._outer = False
        """The outermost value is an object."""
        self._inner = False
        """The value at depth 2 is the object of one of _OWNERS."""
        self._watched = False
        """The innermost value that is open may have the field."""
        self._expects_key = False
        self._key = b""
        self._text = _Text.NONE
        self._escaped = False

    def find(self, data: bytes, at: int, end: int) -> tuple[list[Span], int]:
        """The spans of values in `data[at:end]`, quotes included, and where an unfinished value begins, else `end`.

        The next call must begin with the bytes of the unfinished value.
        """
        spans: list[Span] = []
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
            if token == self._begins and self._watched and not self._expects_key and self._key == self._field:
                closed = self._end_of_value(data, at, end)
                if closed is None:
                    return spans, at - 1
                spans.append((at - 1, closed))
                at, self._key = closed, b""
            elif token != _QUOTE:
                self._pass_structure(token)
            else:
                self._text = _Text.KEY if self._watched and self._expects_key else _Text.OTHER
                self._key = b"" if self._text is _Text.KEY else self._key
        return spans, end

    def skip_value(self) -> None:
        """The unfinished value is not awaited any more: the next call begins behind its first byte."""
        if self._begins == _QUOTE:
            self._text = _Text.OTHER
        else:
            self._pass_structure(_BRACE)

    def _pass_whole(self, data: bytes, at: int, end: int) -> int:
        """Go on behind what cannot have the field and is complete."""
        if not self._depth or (self._watched and not self._expects_key):
            return at
        found = (self._members if self._watched else _BELOW).match(data, at, end)
        return at if found is None else found.end()

    def _end_of_value(self, data: bytes, at: int, end: int) -> int | None:
        """Where the value whose first byte is before `at` is over, None: not in this piece."""
        if self._begins == _QUOTE:
            stop = _end_of_text(data, at, end)
        else:
            inside = _BELOW.match(data, at, end)
            stop = at if inside is None else inside.end()
        return (
            stop + 1
            if stop < end and data[stop] == (_QUOTE if self._begins == _QUOTE else _CLOSING_BRACE)
            else None
        )

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
        if self._text is _Text.KEY and self._begins == _QUOTE and b"\\" in self._key:
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


_QUOTE, _COLON, _COMMA, _BRACE, _CLOSING_BRACE = b'":,{}'
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
