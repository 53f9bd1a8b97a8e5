"""Finds the tokens of a prompt with the model's own files: `tokenizer.json`, and beside it the chat template.

The template is applied as vLLM and SGLang do, by transformers (utils/chat_template_utils.py): Jinja's sandbox with the same
filters, the text tokenized without special tokens of its own. Messages with images, tools in forms that engines rewrite, and
what else is not certain are left to the estimate: a wrong guess would be another prompt.
"""

import asyncio
import datetime
import json
import logging
import re
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Never

import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import msgspec
from tokenizers import Tokenizer
from xxhash import xxh3_128_digest

log = logging.getLogger(__name__)

_MOST_FILE: Final = 256 * 1024 * 1024
_MOST_TEXT: Final = 2 * 1024 * 1024
"""Characters of a prompt."""
_MOST_SEGMENT: Final = 512 * 1024
"""Characters between two special tokens: to take the tokens of more out of the library stops the process for 20 ms."""
_MOST_KEPT: Final = 32 * 1024 * 1024
"""Bytes of tokens that are remembered, of each model, and what one text takes beside them."""
_ENTRY_BYTES: Final = 200
_SPECIAL: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_MARK: Final = re.compile(r"[<\[]")
"""How special tokens begin; another one is a text that is not cut there."""
_MESSAGE_FIELDS: Final = frozenset(
    {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning", "reasoning_content"}
)


class _Completion(msgspec.Struct):
    prompt: str
    add_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None


class _Chat(msgspec.Struct):
    messages: list[dict[str, Any]]
    tools: list[Any] | None = None
    documents: list[Any] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] = {}
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    truncate_prompt_tokens: int | None = None


_COMPLETION: Final = msgspec.json.Decoder(_Completion)
_CHAT: Final = msgspec.json.Decoder(_Chat)


class UncertainPromptError(ValueError):
    """The tokens that an engine would compute are not certain."""


class TokenizerFiles:
    """`paths`: by model, of a tokenizer.json or of its folder. One thread does the work. Files are read when they are needed."""

    def __init__(self, paths: Mapping[str, str]) -> None:
        self._paths = paths
        self._thread = ThreadPoolExecutor(1, "tokenizer")
        # bounded: by the paths
        self._loaded: dict[str, ModelTokenizer | None] = {}

    def has(self, model: str) -> bool:
        return model in self._paths and self._loaded.get(model, ...) is not None

    async def tokens(self, model: str, body: bytes, api: str) -> bytes | None:
        """The tokens of the prompt in a request, 32 bits each; None: they are not certain."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._find, model, body, api)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _find(self, model: str, body: bytes, api: str) -> bytes | None:
        if model not in self._loaded:
            self._loaded[model] = _load(model, Path(self._paths[model]))
        tokenizer = self._loaded[model]
        if tokenizer is None:
            return None
        try:
            return tokenizer.of_request(body, api)
        except Exception as error:  # noqa: BLE001  # a template may raise anything, and so does the library
            log.debug("the files of %s give no tokens of a request: %s", model, type(error).__name__)
            return None


def _load(model: str, path: Path) -> "ModelTokenizer | None":
    try:
        return ModelTokenizer(path / "tokenizer.json" if path.is_dir() else path)
    except Exception as error:  # noqa: BLE001  # the library raises Exception itself
        log.warning(
            "%s is no tokenizer, so prompts of %s are estimated where no worker gives their tokens: %s",
            path,
            model,
            str(error)[:200],
        )
        return None


class ModelTokenizer:
    """The files of one model. Raises OSError, ValueError, and what `tokenizers` raises for a file that is none."""

    def __init__(self, path: Path) -> None:
        if path.stat().st_size > _MOST_FILE:
            raise ValueError(f"it has more than {_MOST_FILE:,} bytes")
        text = path.read_text("utf-8")
        self._tokenizer = Tokenizer.from_str(text)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        # bounded: _MOST_KEPT bytes
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()
        self._kept_bytes = 0
        self._templates, self._names = _chat_templates(path.parent)
        self._special = _special_tokens(json.loads(text))
        if not self._may_split(["a B  1\n", *(f"{one} x\nY " for one in self._special)]):
            self._special = []

    def of_request(self, body: bytes, api: str) -> bytes:
        """Raises UncertainPromptError, msgspec.MsgspecError, and what a template raises."""
        if api == "completions":
            completion = _COMPLETION.decode(body)
            return self._encode(completion.prompt, completion)
        if api != "chat/completions":
            raise UncertainPromptError
        chat = _CHAT.decode(body)
        return self._encode(self._render(chat), chat)

    def _render(self, chat: _Chat) -> str:
        template = self._templates.get(
            "tool_use" if chat.tools else "default", self._templates.get("default")
        )
        if template is None or chat.chat_template is not None or chat.continue_final_message:
            raise UncertainPromptError
        given = {
            "messages": [_message(one) for one in chat.messages],
            "tools": chat.tools,
            "documents": chat.documents,
            "add_generation_prompt": chat.add_generation_prompt,
        }
        return template.render(**(self._names | given | chat.chat_template_kwargs))

    def _encode(self, text: str, request: _Completion | _Chat) -> bytes:
        """Between special tokens texts do not depend on each other, so each is tokenized once: of a further turn only what is new."""
        if not text or len(text) > _MOST_TEXT or request.truncate_prompt_tokens is not None:
            raise UncertainPromptError
        if request.add_special_tokens:
            return self._tokens([text], special=True)[0]
        segments = list(self._split(text))
        if max(map(len, segments)) > _MOST_SEGMENT:
            raise UncertainPromptError
        keys = [xxh3_128_digest(one.encode("utf-8", "surrogatepass")) for one in segments]
        fresh = {key: one for key, one in zip(keys, segments, strict=True) if key not in self._kept}
        found = dict(zip(fresh, self._tokens([*fresh.values()], special=False), strict=True))
        for key in keys:
            if key in found:
                self._kept_bytes += len(found[key]) + _ENTRY_BYTES if key not in self._kept else 0
                self._kept[key] = found[key]
            else:
                found[key] = self._kept[key]
            self._kept.move_to_end(key)
        while self._kept_bytes > _MOST_KEPT:
            self._kept_bytes -= len(self._kept.popitem(last=False)[1]) + _ENTRY_BYTES
        return b"".join([found[key] for key in keys])

    def _tokens(self, texts: list[str], *, special: bool) -> list[bytes]:
        # the call for several texts lets other threads run meanwhile, that for one does not
        encoded = self._tokenizer.encode_batch_fast(texts, add_special_tokens=special) if texts else []
        return [array("I", one.ids).tobytes() for one in encoded]

    def _split(self, text: str) -> Iterator[str]:
        """Each part but the first begins with a special token."""
        begin = at = 0
        while self._special and (found := _MARK.search(text, at)) is not None:
            at = found.start()
            token = next((one for one in self._special if text.startswith(one, at)), None)
            if token is not None and at > begin:
                yield text[begin:at]
                begin = at
            at += 1 if token is None else len(token)
        yield text[begin:]

    def _may_split(self, texts: Sequence[str]) -> bool:
        """Whether these texts one after the other give the tokens of each: a tokenizer may look over the whole."""
        together = self._tokens(["".join(texts)], special=False)[0]
        return together == b"".join(self._tokens(list(texts), special=False))


def _special_tokens(document: Any) -> list[str]:
    """At which a text may be cut; none: at no place."""
    added = document.get("added_tokens") or [] if isinstance(document, dict) else []
    if any(one.get("lstrip") or one.get("rstrip") or one.get("single_word") for one in added):
        return []  # what they take of the texts beside them depends on these
    found = [one["content"] for one in added if one.get("special") and not one.get("normalized")]
    return sorted((one for one in found if _MARK.match(one)), key=len, reverse=True)


def _message(given: dict[str, Any]) -> dict[str, Any]:
    """As vLLM hands it to a template (entrypoints/chat_utils.py)."""
    message = {name: value for name, value in given.items() if name in _MESSAGE_FIELDS}
    content = message.get("content")
    if isinstance(content, list):  # several parts become one text in some models, and a list in others
        if len(content) != 1 or not isinstance(content[0], dict) or content[0].get("type") != "text":
            raise UncertainPromptError
        message["content"] = content[0]["text"]
    elif content is not None and not isinstance(content, str):
        raise UncertainPromptError
    calls = message.get("tool_calls") or ()
    if calls:
        message["tool_calls"] = [_call(one) for one in calls]
    return message


def _call(given: dict[str, Any]) -> dict[str, Any]:
    function = dict(given["function"])
    arguments = function.get("arguments")
    function["arguments"] = json.loads(arguments) if isinstance(arguments, str) and arguments else {}
    return given | {"function": function}


def _chat_templates(folder: Path) -> tuple[dict[str, jinja2.Template], dict[str, str]]:
    """By name, and the special tokens that they may name. None: the folder has no template."""
    path, apart = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    config = json.loads(path.read_bytes()) if path.exists() else {}
    given = apart.read_text("utf-8") if apart.exists() else config.get("chat_template")
    if isinstance(given, list):
        texts = {one["name"]: one["template"] for one in given}
    else:
        texts = {} if given is None else {"default": given}
    tokens = {name: config.get(name) for name in _SPECIAL}
    named = {
        name: one.get("content", "") if isinstance(one, dict) else one
        for name, one in tokens.items()
        if one is not None
    }
    environment = _environment()
    return {name: environment.from_string(text) for name, text in texts.items()}, named


class _GenerationTag(jinja2.ext.Extension):
    """Marks what an assistant said, for training; here it is only what is inside."""

    tags = {"generation"}  # noqa: RUF012  # as its base class

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> jinja2.Environment:
    """As in transformers, _compile_jinja_template."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment


def _to_json(value: Any, indent: int | None = None, separators: Any = None, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> Never:
    raise jinja2.TemplateError(message)
