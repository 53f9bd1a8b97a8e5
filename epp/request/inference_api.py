"""The bodies of the APIs that name a model: which fields of each are decoded, and what of it is the prompt."""

import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, Protocol, TypeAlias

import msgspec
from msgspec import Raw, Struct

Buffer: TypeAlias = bytes | bytearray | memoryview
_MAX_BLANK: Final = 1024
"""Bytes: a list that is longer is not looked at for being blank."""


class Prompt(Protocol):
    """What a request asks, as bytes of its JSON."""

    def prefix(self, limit: int | None) -> bytes:
        """The first `limit` bytes of it, None: all; a chat that goes on begins with the bytes it had before."""

    def extra_key(self) -> bytes:
        """What else has to be equal before two equal beginnings can share a cache: model, cache salt, tools."""


class ChatMessage(Struct):
    role: str
    content: Raw = Raw(b"null")
    tool_calls: Raw = Raw(b"")


class ModelBody(Struct):
    """What all APIs share."""

    model: str | None = None
    stream: bool | None = None
    cache_salt: Raw = Raw(b"")

    def prompt_size(self) -> int:
        """Bytes of what is asked, as JSON; 0 where it is absent, null or empty."""
        return 0

    def prefix(self, limit: int | None) -> bytes:
        return b""

    def extra_key(self) -> bytes:
        return b"\0".join((self.model_name(), self.cache_salt))

    def model_name(self) -> bytes:
        return (self.model or "").encode()


class CompletionBody(ModelBody):
    prompt: Raw = Raw(b"null")

    def prompt_size(self) -> int:
        return _text_or_list_size(self.prompt, "$.prompt")

    def prefix(self, limit: int | None) -> bytes:
        return _text_prefix(self.prompt, limit)


class ChatBody(ModelBody):
    messages: list[ChatMessage] | None = None
    tools: Raw = Raw(b"")

    def prompt_size(self) -> int:
        _check_tools(self.tools)
        return sum([memoryview(message.content).nbytes for message in self.messages or ()])

    def prefix(self, limit: int | None) -> bytes:
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

    def extra_key(self) -> bytes:
        # every chat template shows the tools to the model before the messages
        return b"\0".join((self.model_name(), self.cache_salt, self.tools))


class RawChatBody(ModelBody):
    """A chat of so many messages that to take them apart would hold up all others: the worker reads them."""

    messages: Raw = Raw(b"null")
    tools: Raw = Raw(b"")

    def prompt_size(self) -> int:
        return _list_size(self.messages, "$.messages")

    def prefix(self, limit: int | None) -> bytes:
        view = memoryview(self.messages)[1:-1]  # its closing bracket is where a longer one goes on
        return bytes(view[:limit])

    def extra_key(self) -> bytes:
        return b"\0".join((self.model_name(), self.cache_salt, self.tools))


class InputBody(ModelBody):
    input: Raw = Raw(b"null")

    def prompt_size(self) -> int:
        return _text_or_list_size(self.input, "$.input")

    def prefix(self, limit: int | None) -> bytes:
        return _text_prefix(self.input, limit)


class RawResponsesBody(InputBody):
    """A body with so many objects that its tools, too, are left to the worker."""

    tools: Raw = Raw(b"")

    def extra_key(self) -> bytes:
        return b"\0".join((self.model_name(), self.cache_salt, self.tools))


class ResponsesBody(RawResponsesBody):
    def prompt_size(self) -> int:
        _check_tools(self.tools)
        return _text_or_list_size(self.input, "$.input")


APIS: Final[Mapping[str, tuple[msgspec.json.Decoder[Any], str]]] = {
    "chat/completions": (msgspec.json.Decoder(ChatBody), "messages"),
    "chat/completions/render": (msgspec.json.Decoder(ChatBody), "messages"),
    "completions": (msgspec.json.Decoder(CompletionBody), "prompt"),
    "completions/render": (msgspec.json.Decoder(CompletionBody), "prompt"),
    "embeddings": (msgspec.json.Decoder(InputBody), "input"),
    "responses": (msgspec.json.Decoder(ResponsesBody), "input"),
}
"""By the end of the path: how the body is decoded, and the field that must say what is asked."""
APIS_WITHOUT_OBJECTS: Final[Mapping[str, tuple[msgspec.json.Decoder[Any], str]]] = {
    **APIS,
    "chat/completions": (msgspec.json.Decoder(RawChatBody), "messages"),
    "chat/completions/render": (msgspec.json.Decoder(RawChatBody), "messages"),
    "responses": (msgspec.json.Decoder(RawResponsesBody), "input"),
}
"""The same for a body that `has_many_objects`."""
_LARGE_BODY: Final = 2 * 1024 * 1024
_MANY_OBJECTS: Final = 100_000
"""JSON objects: half a microsecond and 60 bytes each."""


def has_many_objects(body: Buffer) -> bool:
    """Whether it may have more than _MANY messages; a body that is smaller than _LONG has few enough."""
    if len(body) < _LARGE_BODY:
        return False
    return (bytes(body) if isinstance(body, memoryview) else body).count(b"{") > _MANY_OBJECTS


MODEL_ONLY_PATHS: Final = frozenset(
    {"messages", "messages/count_tokens", "images/generations", "conversations", "audio/speech"}
    | {"rerank", "score", "classify", "pooling", "tokenize", "detokenize"}
)
"""Ends of paths whose bodies name a model, but whose other fields are not ours to judge."""
MODEL_ONLY: Final = msgspec.json.Decoder(ModelBody)


def api_of(path: str) -> str | None:
    """The longest end of a path at its slashes that is an API of ours, else that names a model, else None."""
    return _known_suffix(path[-_MAX_SUFFIX:])


_MAX_SUFFIX: Final = 64
"""Characters: more than the longest end that is known, so that nobody fills the cache with long paths."""


@lru_cache(maxsize=256)
def _known_suffix(path: str) -> str | None:
    segments = path.split("/")[-3:]
    suffixes = ["/".join(segments[i:]) for i in range(len(segments))]
    for known in (APIS, MODEL_ONLY_PATHS):
        if found := next((suffix for suffix in suffixes if suffix in known), None):
            return found
    return None


def _text_or_list_size(raw: Raw, json_path: str) -> int:
    view = memoryview(raw)
    match bytes(view[:1]):
        case b'"':
            return view.nbytes if view.nbytes > 2 else 0
        case b"[":
            return 0 if _is_blank(view) else view.nbytes
        case b"n":
            return 0
        case _:
            raise msgspec.ValidationError(f"Expected `str | array` - at `{json_path}`")


def _list_size(raw: Raw, json_path: str) -> int:
    view = memoryview(raw)
    if bytes(view[:1]) == b"n":
        return 0
    if bytes(view[:1]) != b"[":
        raise msgspec.ValidationError(f"Expected `array | null` - at `{json_path}`")
    return 0 if _is_blank(view) else view.nbytes


def _is_blank(view: memoryview) -> bool:
    """Whether a list has nothing in it."""
    return view.nbytes < _MAX_BLANK and not bytes(view[1:-1]).strip()


class _Tool(Struct):
    """An object; what is in it is the worker's business."""


_TOOLS: Final = msgspec.json.Decoder(list[_Tool] | None)


def _check_tools(raw: Raw) -> None:
    """Raises msgspec.ValidationError where they are no list of objects."""
    if memoryview(raw).nbytes:
        try:
            _TOOLS.decode(raw)
        except msgspec.ValidationError as error:
            cause, at, json_path = str(error).partition(" - at `$")
            raise msgspec.ValidationError(f"{cause} - at `$.tools{json_path if at else '`'}") from None


def _text_prefix(raw: Raw, limit: int | None) -> bytes:
    view = memoryview(raw)
    text = view[1:-1] if bytes(view[:1]) == b'"' else view  # its closing quote is where a longer one goes on
    return bytes(text[:limit])
