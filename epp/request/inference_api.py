"""Decodes the few fields of each inference API's body that the picker reads, and finds the prompt in it.

Prompts stay raw JSON (`msgspec.Raw`): the picker compares their bytes and needs no text, so nothing is copied.
"""

import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, Protocol, TypeAlias

import msgspec
import numpy as np
from msgspec import Raw, Struct, field
from numpy.typing import NDArray

Buffer: TypeAlias = bytes | bytearray | memoryview
_MEDIA_FROM: Final = 16 * 1024
"""Bytes of a message's content, from which on it is searched for images."""
_MEDIA: Final = b";base64,"
_MEDIA_BYTES: Final = 4096
"""The tokens that an image in a prompt counts as. About 1,000 tokens are a megapixel for Qwen2-VL, which takes 28 x 28 pixels as one."""
_MAX_BLANK: Final = 1024
"""Bytes; a longer list is not searched for anything but whitespace."""


def _content_size(content: Raw) -> int:
    """Bytes of a message's content; a `data:` URL (RFC 2397) counts as an image, whatever the length of its base64."""
    size = memoryview(content).nbytes
    if size < _MEDIA_FROM:
        return size
    data = bytes(content)
    start = data.find(_MEDIA) if data[:1] == b"[" else -1  # a text has no parts
    while start >= 0:
        end = data.find(b'"', start)
        if end < 0:
            break
        size -= max(0, end - start - _MEDIA_BYTES)
        start = data.find(_MEDIA, end)
    return size


_MEDIA_TYPES: Final = ("image_url", "video_url", "audio_url", "input_audio")
"""Types of the parts of a message."""


class _Part(Struct):
    type: str = ""


_PARTS: Final = msgspec.json.Decoder(list[_Part])


def _names_media(data: bytes) -> bool:
    return any(b'"%b"' % kind.encode() in data for kind in _MEDIA_TYPES)


def _has_media(content: Raw) -> bool:
    data = bytes(content)
    if data[:1] != b"[" or not _names_media(data):
        return False
    try:
        return any(part.type in _MEDIA_TYPES for part in _PARTS.decode(data))
    except (msgspec.MsgspecError, RecursionError):
        return False  # parts that are no objects: the worker answers for them


class Prompt(Protocol):
    """The prompt of a request, as bytes of its JSON; `model`: the one that serves it."""

    model: str | None

    def prefix(self, limit: int | None) -> bytes:
        """The first `limit` bytes, None: all. The next turn of a chat has the same prefix, since closing brackets are left out."""

    def extra_key(self) -> bytes:
        """The facts that must be equal besides the prompt for a prefix cache to be shared: model, cache salt, tools.

        vLLM mixes the same into its block hashes (docs.vllm.ai, Automatic Prefix Caching: extra hashes, cache_salt).
        """

    def max_output_tokens(self) -> int | None:
        """The most tokens that the client wants as an answer; None if it does not say, or says no count."""

    def has_media(self) -> bool:
        """Whether a chat has images, videos or sounds."""


class ChatMessage(Struct):
    role: str
    content: Raw = Raw(b"null")
    tool_calls: Raw = Raw(b"")


class ModelBody(Struct):
    """The fields that all APIs share."""

    model: str | None = None
    stream: bool | None = None
    cache_salt: Raw = Raw(b"")

    def prompt_size(self) -> int:
        """Bytes of the prompt as JSON; 0 if it is absent, null or empty."""
        return 0

    def prefix(self, limit: int | None) -> bytes:
        return b""

    def extra_key(self) -> bytes:
        return b"\0".join((self.model_name(), self.cache_salt))

    def max_output_tokens(self) -> int | None:
        return None

    def has_media(self) -> bool:
        return False

    def model_name(self) -> bytes:
        return (self.model or "").encode()


class CompletionBody(ModelBody):
    prompt: Raw = Raw(b"null")
    max_tokens: Raw = Raw(b"")

    def max_output_tokens(self) -> int | None:
        return _count(self.max_tokens)

    def prompt_size(self) -> int:
        return _text_or_list_size(self.prompt, "$.prompt")

    def prefix(self, limit: int | None) -> bytes:
        return _text_prefix(self.prompt, limit)


class AnyChatBody(ModelBody):
    max_completion_tokens: Raw = Raw(b"")
    max_tokens: Raw = Raw(b"")

    def max_output_tokens(self) -> int | None:
        newer = _count(self.max_completion_tokens)
        return _count(self.max_tokens) if newer is None else newer


class ChatBody(AnyChatBody):
    messages: list[ChatMessage] | None = None
    tools: Raw = Raw(b"")

    def has_media(self) -> bool:
        return any(_has_media(message.content) for message in self.messages or ())

    def prompt_size(self) -> int:
        _check_tools(self.tools)
        return sum([_content_size(message.content) for message in self.messages or ()])

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
        # chat templates put the tools before the messages, so other tools are another prefix
        return b"\0".join((self.model_name(), self.cache_salt, self.tools))


class RawChatBody(AnyChatBody):
    """A chat with so many messages that to decode them would delay all other requests; they stay one raw list."""

    messages: Raw = Raw(b"null")
    tools: Raw = Raw(b"")

    def prompt_size(self) -> int:
        return _list_size(self.messages, "$.messages")

    def has_media(self) -> bool:
        return _names_media(bytes(self.messages))

    def prefix(self, limit: int | None) -> bytes:
        view = memoryview(self.messages)[1:-1]  # without its closing bracket, where the next turn goes on
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
    """A body with so many objects that its tools are not checked."""

    tools: Raw = Raw(b"")
    max_output: Raw = field(default=Raw(b""), name="max_output_tokens")

    def extra_key(self) -> bytes:
        return b"\0".join((self.model_name(), self.cache_salt, self.tools))

    def max_output_tokens(self) -> int | None:
        return _count(self.max_output)


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
"""By the suffix of the path: the decoder of the body, and the field that must hold the prompt."""
APIS_WITHOUT_OBJECTS: Final[Mapping[str, tuple[msgspec.json.Decoder[Any], str]]] = {
    **APIS,
    "chat/completions": (msgspec.json.Decoder(RawChatBody), "messages"),
    "chat/completions/render": (msgspec.json.Decoder(RawChatBody), "messages"),
    "responses": (msgspec.json.Decoder(RawResponsesBody), "input"),
}
"""The same for a body that `has_many_objects`: no list of objects is decoded."""
_LARGE_BODY: Final = 2 * 1024 * 1024
_MANY_OBJECTS: Final = 100_000
"""JSON objects; each takes half a microsecond and 60 bytes to decode."""


def has_many_objects(body: Buffer) -> bool:
    """Whether the body may have more than _MANY_OBJECTS messages; a small body cannot have so many."""
    if len(body) < _LARGE_BODY:
        return False
    return (bytes(body) if isinstance(body, memoryview) else body).count(b"{") > _MANY_OBJECTS


MODEL_ONLY_PATHS: Final = frozenset(
    {"messages", "messages/count_tokens", "images/generations", "conversations", "audio/speech"}
    | {"rerank", "score", "classify", "pooling", "tokenize", "detokenize"}
)
"""Suffixes of paths whose bodies name a model, but whose other fields the picker does not check."""
MODEL_ONLY: Final = msgspec.json.Decoder(ModelBody)


def api_of(path: str) -> str | None:
    """The longest suffix of the path, at a slash, that is in `APIS`, else in `MODEL_ONLY_PATHS`, else None."""
    return _known_suffix(path[-_MAX_SUFFIX:])


_MAX_SUFFIX: Final = 64
"""Characters; longer than any known suffix. Bounds the cache, whose keys clients choose."""


@lru_cache(maxsize=256)
# bounded: 256 ends of paths of 64 characters
def _known_suffix(path: str) -> str | None:
    # bounded: _MAX_SUFFIX characters
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


_MAX_DIGITS: Final = 12


def _count(raw: Raw) -> int | None:
    """A JSON number that counts something; None for anything else, also for one of many digits."""
    text = bytes(memoryview(raw)[: _MAX_DIGITS + 1])
    return int(text) if text.isdigit() and len(text) <= _MAX_DIGITS else None


def _list_size(raw: Raw, json_path: str) -> int:
    view = memoryview(raw)
    if bytes(view[:1]) == b"n":
        return 0
    if bytes(view[:1]) != b"[":
        raise msgspec.ValidationError(f"Expected `array | null` - at `{json_path}`")
    return 0 if _is_blank(view) else view.nbytes


def _is_blank(view: memoryview) -> bool:
    return view.nbytes < _MAX_BLANK and not bytes(view[1:-1]).strip()


class _Tool(Struct):
    """Any JSON object; its fields are not checked."""


_TOOLS: Final = msgspec.json.Decoder(list[_Tool] | None)


def _check_tools(raw: Raw) -> None:
    """Raises msgspec.ValidationError unless they are a list of objects or null."""
    if memoryview(raw).nbytes:
        try:
            _TOOLS.decode(raw)
        except msgspec.ValidationError as error:
            cause, at, json_path = str(error).partition(" - at `$")
            raise msgspec.ValidationError(f"{cause} - at `$.tools{json_path if at else '`'}") from None


def _text_prefix(raw: Raw, limit: int | None) -> bytes:
    view = memoryview(raw)
    # without its closing quote, where a longer text goes on
    text = view[1:-1] if bytes(view[:1]) == b'"' else view
    return bytes(text[:limit])


_MESSAGE_BYTES: Final = 200
"""That one decoded message takes beside its bytes in the body."""
_FEW: Final = 64
"""This few messages may take as much as they need."""


class HeldChat:
    """A `Prompt` that answers as the chat did from which it was made, and keeps none of its messages."""

    __slots__ = ("_extra_key", "_has_media", "_max_output_tokens", "_text", "cache_salt", "model")

    def __init__(self, chat: ChatBody) -> None:
        self.model = chat.model
        self._text = chat.prefix(None)
        self.cache_salt = Raw(bytes(chat.cache_salt))
        self._extra_key = chat.extra_key()
        self._max_output_tokens = chat.max_output_tokens()
        self._has_media = chat.has_media()

    def prefix(self, limit: int | None) -> bytes:
        return self._text[:limit]

    def extra_key(self) -> bytes:
        return self._extra_key

    def max_output_tokens(self) -> int | None:
        return self._max_output_tokens

    def has_media(self) -> bool:
        return self._has_media


def while_it_waits(prompt: Prompt | None, body_size: int) -> Prompt | None:
    """The prompt itself, or the same in less memory if its messages take more than its body: clients choose how many wait."""
    if isinstance(prompt, ChatBody) and prompt.messages is not None:
        messages = len(prompt.messages)
        if messages > _FEW and messages * _MESSAGE_BYTES > body_size:
            return HeldChat(prompt)
    return prompt


MAX_REPAIRED: Final = 8 * 1024 * 1024
"""Bytes of a body that is searched; the search takes about ten times as much memory."""


def replace_lone_surrogates(body: Buffer) -> bytes | None:
    """The body with U+FFFD for each unpaired surrogate, of the same length; None if it has none or is too large."""
    if len(body) > MAX_REPAIRED:
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
