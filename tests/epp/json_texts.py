"""JSON as a stranger may write it: with any spaces, escapes, repeated keys and nested `model`; and what has to become of it."""

import itertools
import random
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

SERVED = 'lora/"é😀-v2'
OWNERS = ("response", "message")
KEYS = (
    "model",
    "model",
    "messages",
    "response",
    "message",
    "metadata",
    'x"model',
    "model\\",
    "Model",
    "prompt",
)


class Pairs(list[tuple[str, Any]]):
    """A JSON object whose keys may repeat."""


SCALARS = (
    st.sampled_from([SERVED, SERVED, "other", 'a "model": "x"', "\\", ""])
    | st.text(max_size=8)
    | st.none()
    | st.booleans()
    | st.integers()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(st.tuples(st.sampled_from(KEYS), inner), max_size=4).map(Pairs)
    ),
    max_leaves=12,
)
OBJECTS = st.lists(st.tuples(st.sampled_from(KEYS), VALUES), max_size=6).map(Pairs)


@dataclass(frozen=True)
class Part:
    """Some bytes of a text; `path`: the keys that lead to it if it is a string, else None."""

    text: bytes
    path: tuple[str | int, ...] | None = None
    value: Any = None


class Writer:
    """Writes JSON; `spaces`: what may stand between two tokens."""

    def __init__(
        self, rng: random.Random, spaces: tuple[bytes, ...] = (b"", b"", b"", b" ", b"\n", b"\t\r\n ")
    ) -> None:
        self._rng = rng
        self._spaces = spaces

    def parts(self, value: Any, path: tuple[str | int, ...] = ()) -> list[Part]:
        if isinstance(value, Pairs):
            out = [Part(b"{"), self._space()]
            for number, (key, inner) in enumerate(value):
                out += [Part(b","), self._space()] if number else []
                out += [Part(self.spelled(key)), self._space(), Part(b":"), self._space()]
                out += [*self.parts(inner, (*path, key)), self._space()]
            return [*out, Part(b"}")]
        if isinstance(value, list):
            out = [Part(b"["), self._space()]
            for number, inner in enumerate(value):
                out += [Part(b","), self._space()] if number else []
                out += [*self.parts(inner, (*path, number)), self._space()]
            return [*out, Part(b"]")]
        if isinstance(value, str):
            return [Part(self.spelled(value), path, value)]
        literal = {None: b"null", True: b"true", False: b"false"}
        return [Part(literal[value] if value is None or isinstance(value, bool) else b"%d" % value)]

    def spelled(self, text: str) -> bytes:
        """A JSON string, each letter as it is or escaped."""
        return b'"' + b"".join(map(self._letter, text)) + b'"'

    def _letter(self, letter: str) -> bytes:
        short = {'"': b'\\"', "\\": b"\\\\", "/": b"\\/", "\n": b"\\n", "\t": b"\\t", "\b": b"\\b"}
        if letter in short and self._rng.random() < 0.5:
            return short[letter]
        if letter in '"\\' or letter < " " or self._rng.random() < 0.05:
            units = letter.encode("utf-16-be", "surrogatepass")
            escaped = "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))
            return (
                escaped if self._rng.random() < 0.5 else escaped.replace("a", "A").replace("d", "D")
            ).encode()
        return letter.encode("utf-8", "surrogatepass")

    def _space(self) -> Part:
        return Part(self._rng.choice(self._spaces))


def joined(parts: list[Part]) -> bytes:
    return b"".join(part.text for part in parts)


def restored(parts: list[Part], served: str, named: bytes) -> bytes:
    """The text as the client must see it."""
    return b"".join(named if _is_name(part.path) and part.value == served else part.text for part in parts)


def _is_name(path: tuple[str | int, ...] | None) -> bool:
    return path == ("model",) or path in [(owner, "model") for owner in OWNERS]


def rewritten(parts: list[Part], model: bytes) -> bytes:
    """A request whose model is another one: the last of the outermost `model`."""
    last = max(number for number, part in enumerate(parts) if part.path == ("model",))
    return b"".join(model if number == last else part.text for number, part in enumerate(parts))


def cut(text: bytes, at: list[int]) -> list[bytes]:
    """The text in pieces that end at these places."""
    places = [0, *sorted({place % (len(text) + 1) for place in at}), len(text)]
    return [text[begin:end] for begin, end in itertools.pairwise(places)]
