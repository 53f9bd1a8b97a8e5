"""The bodies of the APIs that name a model: which fields of each are decoded, and what of it is the prompt."""

import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, Protocol, TypeAlias

import msgspec
from msgspec import Raw, Struct

Buffer: TypeAlias = bytes | bytearray | memoryview
_SHORT: Final = 1024
"""Bytes: a list that is longer is not looked at for being blank."""


class Prompt(Protocol):
    """What a request asks, as bytes of its JSON."""

    def head(self, limit: int | None) -> bytes:
        """The first `limit` bytes of it, None: all; a chat that goes on begins with the bytes it had before."""

    def context(self) -> bytes:
        """What else has to be equal before two equal beginnings can share a cache: model, cache salt, tools."""


class Message(Struct):
    role: str
    content: Raw = Raw(b"null")
    tool_calls: Raw = Raw(b"")


class Content(Struct):
    """What all APIs share."""

    model: str | None = None
    stream: bool | None = None
    cache_salt: Raw = Raw(b"")

    def size(self) -> int:
        """Bytes of what is asked, as JSON; 0 where it is absent, null or empty."""
        return 0

    def head(self, limit: int | None) -> bytes:
        return b""

    def context(self) -> bytes:
        return b"\0".join((self.name(), self.cache_salt))

    def name(self) -> bytes:
        return (self.model or "").encode()


class Completion(Content):
    prompt: Raw = Raw(b"null")

    def size(self) -> int:
        return _text_or_list(self.prompt, "$.prompt")

    def head(self, limit: int | None) -> bytes:
        return _text_head(self.prompt, limit)


class Chat(Content):
    messages: list[Message] | None = None
    tools: Raw = Raw(b"")

    def size(self) -> int:
        _check_tools(self.tools)
        return sum([memoryview(message.content).nbytes for message in self.messages or ()])

    def head(self, limit: int | None) -> bytes:
        pieces: list[Buffer] = []
        left = sys.maxsize if limit is None else limit
        for message in self.messages or ():
            content = memoryview(message.content)
            left -= content.nbytes
            if left <= 0:
                pieces += (message.role.encode(), content[: left or None])
                break
            pieces += (message.role.encode(), content, message.tool_calls)
        return b"".join(pieces)[:limit]

    def context(self) -> bytes:
        # every chat template shows the tools to the model before the messages
        return b"\0".join((self.name(), self.cache_salt, self.tools))


class LongChat(Content):
    """A chat of so many messages that to take them apart would hold up all others: the worker reads them."""

    messages: Raw = Raw(b"null")
    tools: Raw = Raw(b"")

    def size(self) -> int:
        return _list(self.messages, "$.messages")

    def head(self, limit: int | None) -> bytes:
        view = memoryview(self.messages)[1:-1]  # its closing bracket is where a longer one goes on
        return bytes(view[:limit])

    def context(self) -> bytes:
        return b"\0".join((self.name(), self.cache_salt, self.tools))


class Input(Content):
    input: Raw = Raw(b"null")

    def size(self) -> int:
        return _text_or_list(self.input, "$.input")

    def head(self, limit: int | None) -> bytes:
        return _text_head(self.input, limit)


class LongResponses(Input):
    """A body with so many objects that its tools, too, are left to the worker."""

    tools: Raw = Raw(b"")

    def context(self) -> bytes:
        return b"\0".join((self.name(), self.cache_salt, self.tools))


class Responses(LongResponses):
    def size(self) -> int:
        _check_tools(self.tools)
        return _text_or_list(self.input, "$.input")


APIS: Final[Mapping[str, tuple[msgspec.json.Decoder[Any], str]]] = {
    "chat/completions": (msgspec.json.Decoder(Chat), "messages"),
    "chat/completions/render": (msgspec.json.Decoder(Chat), "messages"),
    "completions": (msgspec.json.Decoder(Completion), "prompt"),
    "completions/render": (msgspec.json.Decoder(Completion), "prompt"),
    "embeddings": (msgspec.json.Decoder(Input), "input"),
    "responses": (msgspec.json.Decoder(Responses), "input"),
}
"""By the end of the path: how the body is decoded, and the field that must say what is asked."""
LONG: Final[Mapping[str, tuple[msgspec.json.Decoder[Any], str]]] = {
    **APIS,
    "chat/completions": (msgspec.json.Decoder(LongChat), "messages"),
    "chat/completions/render": (msgspec.json.Decoder(LongChat), "messages"),
    "responses": (msgspec.json.Decoder(LongResponses), "input"),
}
"""The same for a body that `is_long`."""
_LONG: Final = 2 * 1024 * 1024
_MANY: Final = 100_000
"""JSON objects: half a microsecond and 60 bytes each."""


def is_long(body: Buffer) -> bool:
    """Whether it may have more than _MANY messages; a body that is smaller than _LONG has few enough."""
    if len(body) < _LONG:
        return False
    return (bytes(body) if isinstance(body, memoryview) else body).count(b"{") > _MANY


ONLY_MODEL: Final = frozenset(
    {"messages", "messages/count_tokens", "images/generations", "conversations", "audio/speech"}
    | {"rerank", "score", "classify", "pooling", "tokenize", "detokenize"}
)
"""Ends of paths whose bodies name a model, but whose other fields are not ours to judge."""
CONTENT: Final = msgspec.json.Decoder(Content)


def api_of(path: str) -> str | None:
    """The longest end of a path at its slashes that is an API of ours, else that names a model, else None."""
    return _known_end(path[-_TAIL:])


_TAIL: Final = 64
"""Characters: more than the longest end that is known, so that nobody fills the cache with long paths."""


@lru_cache(maxsize=256)
def _known_end(path: str) -> str | None:
    segments = path.split("/")[-3:]
    ends = ["/".join(segments[i:]) for i in range(len(segments))]
    for known in (APIS, ONLY_MODEL):
        if found := next((end for end in ends if end in known), None):
            return found
    return None


def _text_or_list(raw: Raw, place: str) -> int:
    view = memoryview(raw)
    match bytes(view[:1]):
        case b'"':
            return view.nbytes if view.nbytes > 2 else 0
        case b"[":
            return 0 if _is_blank(view) else view.nbytes
        case b"n":
            return 0
        case _:
            raise msgspec.ValidationError(f"Expected `str | array` - at `{place}`")


def _list(raw: Raw, place: str) -> int:
    view = memoryview(raw)
    if bytes(view[:1]) == b"n":
        return 0
    if bytes(view[:1]) != b"[":
        raise msgspec.ValidationError(f"Expected `array | null` - at `{place}`")
    return 0 if _is_blank(view) else view.nbytes


def _is_blank(view: memoryview) -> bool:
    """Whether a list has nothing in it."""
    return view.nbytes < _SHORT and not bytes(view[1:-1]).strip()


class _Tool(Struct):
    """An object; what is in it is the worker's business."""


_TOOLS: Final = msgspec.json.Decoder(list[_Tool] | None)


def _check_tools(raw: Raw) -> None:
    """Raises msgspec.ValidationError where they are no list of objects."""
    if memoryview(raw).nbytes:
        try:
            _TOOLS.decode(raw)
        except msgspec.ValidationError as error:
            said, at, place = str(error).partition(" - at `$")
            raise msgspec.ValidationError(f"{said} - at `$.tools{place if at else '`'}") from None


def _text_head(raw: Raw, limit: int | None) -> bytes:
    view = memoryview(raw)
    text = view[1:-1] if bytes(view[:1]) == b'"' else view  # its closing quote is where a longer one goes on
    return bytes(text[:limit])
