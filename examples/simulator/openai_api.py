"""Parses OpenAI requests and builds the response bodies; only the fields that routers and benchmark clients use."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from examples.simulator.encoding import MEDIA, item_hash
from examples.simulator.handover import Handover, HandoverFields
from examples.simulator.tokens import echo, token_id, tokenize

DONE = b"data: [DONE]\n\n"

_RequestT = TypeVar("_RequestT", bound="_Request")

_COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions


@dataclass(frozen=True, slots=True)
class Profile:
    """The identity and models of one worker. `max_model_len`: prompt and output together, in tokens."""

    instance_id: str
    model: str
    adapters: tuple[str, ...]
    max_model_len: int


class ApiError(Exception):
    """Sent to the client as OpenAI's error object."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self._error = {"message": message, "type": _error_type(status), "param": param, "code": code}

    def body(self) -> dict[str, Any]:
        return {"error": self._error}


class _StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False


class _Request(HandoverFields, frozen=True, kw_only=True):
    model: str
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = None
    n: int | None = 1
    cache_salt: str | None = None
    ec_transfer_params: dict[str, Any] | None = None


class _CompletionRequest(_Request, frozen=True):
    prompt: str | list[int]


class _Part(msgspec.Struct, frozen=True):
    type: str
    text: str = ""
    image_url: Any = None
    audio_url: Any = None
    video_url: Any = None
    input_audio: Any = None


class _Message(msgspec.Struct, frozen=True):
    role: str
    content: str | list[_Part] | None = None

    def text(self) -> str:
        """The text of all parts; images and the like become `<|type|>`."""
        if isinstance(self.content, list):
            return "".join(part.text if part.type == "text" else f"<|{part.type}|>" for part in self.content)
        return self.content or ""


class _ChatRequest(_Request, frozen=True):
    messages: list[_Message]
    max_completion_tokens: int | None = None

    def media(self) -> tuple[str, ...]:
        """The hashes of its images and the like, each once."""
        contents = [one.content for one in self.messages if isinstance(one.content, list)]
        parts = [part for content in contents for part in content if part.type in MEDIA]
        return tuple(dict.fromkeys(item_hash(getattr(part, part.type)) for part in parts))


@dataclass(frozen=True, slots=True)
class Generation:
    """A parsed chat or completion request, and the tokens of its answer. `adapter`: None for the base model."""

    chat: bool
    model: str
    adapter: str | None
    prompt: Sequence[str]
    answer: Sequence[str]
    finish_reason: str
    stream: bool
    include_usage: bool
    salt: str = ""
    handover: Handover | None = None
    media: tuple[str, ...] = ()
    encoded: Mapping[str, Any] = field(default_factory=dict)

    @property
    def hands_over(self) -> bool:
        """Whether another worker goes on with it: not if its answer is complete, as in vLLM, nor if it is streamed."""
        ended = self.stream or self.finish_reason != "length"
        return self.handover is not None and self.handover.hold and not ended


def parse(body: bytes, *, chat: bool, profile: Profile, role: str = "both") -> Generation:
    """Raises ApiError: 400 for an invalid request, 404 for a model that this worker does not serve."""
    request: _ChatRequest | _CompletionRequest
    request = _decode(body, _ChatRequest) if chat else _decode(body, _CompletionRequest)
    _check(request, profile)
    prompt, echoed = (
        _chat_prompt(request) if isinstance(request, _ChatRequest) else _completion_prompt(request)
    )
    limit = _limit(request)
    remaining = profile.max_model_len - len(prompt)
    if remaining < (limit or 1):
        raise ApiError(
            400, _context_length_error(profile.max_model_len, len(prompt), limit or 1), param="max_tokens"
        )
    answer = echo(echoed, limit)
    options = request.stream_options or _StreamOptions()
    try:
        handover = request.handover(role)
    except ValueError as error:
        raise ApiError(400, str(error)) from error
    return Generation(
        chat=chat,
        model=request.model,
        adapter=request.model if request.model != profile.model else None,
        prompt=prompt,
        answer=answer[:remaining],
        finish_reason="stop" if limit is None and len(answer) <= remaining else "length",
        stream=bool(request.stream),
        include_usage=options.include_usage,
        salt=request.cache_salt or "",
        handover=handover,
        media=request.media() if isinstance(request, _ChatRequest) else (),
        encoded=request.ec_transfer_params or {},
    )


def tokens_of(body: bytes, *, chat: bool, profile: Profile) -> list[int]:
    """The tokens of the prompt of such a request; raises ApiError as `parse`."""
    return [token_id(token) for token in parse(body, chat=chat, profile=profile).prompt]


@dataclass(frozen=True, slots=True)
class Reply:
    """Builds the response bodies of one `Generation`. `created`: seconds since the epoch."""

    generation: Generation
    request_id: str
    instance_id: str
    created: int

    def response_body(self, cached_tokens: int, held: dict[str, Any] | None = None) -> dict[str, Any]:
        """The body of a response that is not streamed. `held`: where another worker can fetch the KV cache of the prompt."""
        text, generation = "".join(self.generation.answer), self.generation
        content = {"message": {"role": "assistant", "content": text}} if generation.chat else {"text": text}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": generation.finish_reason}
        body = self._body("chat.completion" if generation.chat else "text_completion", [choice])
        if held is not None and generation.handover is not None and generation.handover.form == "trtllm":
            first = [token_id(generation.answer[0])]
            choice["disaggregated_params"] = held | {"first_gen_tokens": first}
            body["prompt_token_ids"] = [token_id(token) for token in generation.prompt]
        elif held is not None:
            body["kv_transfer_params"] = held
        return body | {"usage": self._usage(cached_tokens)}

    def chunk(self, index: int) -> dict[str, Any]:
        """The event with token `index`; the last one also has the finish reason."""
        generation = self.generation
        token = generation.answer[index]
        role = {"role": "assistant"} if index == 0 else {}
        content = {"delta": role | {"content": token}} if generation.chat else {"text": token}
        finish_reason = generation.finish_reason if index == len(generation.answer) - 1 else None
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish_reason}
        body = self._body(self._chunk_object(), [choice])
        return body | {"usage": None} if generation.include_usage else body

    def usage_chunk(self, cached_tokens: int) -> dict[str, Any]:
        """The event after the last token, sent if `stream_options.include_usage` is set."""
        return self._body(self._chunk_object(), []) | {"usage": self._usage(cached_tokens)}

    def _chunk_object(self) -> str:
        return "chat.completion.chunk" if self.generation.chat else "text_completion"

    def _body(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"{'chatcmpl' if self.generation.chat else 'cmpl'}-{self.request_id}",
            "object": kind,
            "created": self.created,
            "model": self.generation.model,
            "system_fingerprint": self.instance_id,
            "choices": choices,
        }

    def _usage(self, cached_tokens: int) -> dict[str, Any]:
        prompt, answer = len(self.generation.prompt), len(self.generation.answer)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": answer,
            "total_tokens": prompt + answer,
            "prompt_tokens_details": {"cached_tokens": cached_tokens},
        }


def models(profile: Profile, created: int) -> dict[str, Any]:
    """The body of /v1/models in vLLM's form: adapters have the base model as `parent`."""
    entries = [
        {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "adsum",
            "root": name,
            "parent": None if name == profile.model else profile.model,
            "max_model_len": profile.max_model_len,
        }
        for name in _served(profile)
    ]
    return {"object": "list", "data": entries}


def event(body: dict[str, Any]) -> bytes:
    """Encodes an object as one server-sent event."""
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def _served(profile: Profile) -> tuple[str, ...]:
    return (profile.model, *profile.adapters)


def _decode(body: bytes, shape: type[_RequestT]) -> _RequestT:
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.ValidationError as error:
        raise ApiError(400, f"the request is not valid: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {error}") from error


def _check(request: _ChatRequest | _CompletionRequest, profile: Profile) -> None:
    if request.model not in _served(profile):
        message = (
            f"The model `{request.model}` does not exist. This worker serves: {', '.join(_served(profile))}."
        )
        raise ApiError(404, message, param="model", code="model_not_found")
    if request.n not in (None, 1):
        raise ApiError(400, f"n must be 1, other values are not simulated, got {request.n}", param="n")
    limit = _limit(request)
    if limit is not None and limit < 1:
        raise ApiError(400, f"max_tokens must be at least 1, got {limit}", param="max_tokens")


def _chat_prompt(request: _ChatRequest) -> tuple[list[str], str]:
    if request.prompt_token_ids:
        return _numbered(request.prompt_token_ids), ""
    if not request.messages:
        raise ApiError(400, "messages must hold at least one message", param="messages")
    prompt: list[str] = []
    for message in request.messages:
        prompt.append(f"<|{message.role}|>")
        prompt.extend(tokenize(message.text()))
    prompt.append("<|assistant|>")
    return prompt, request.messages[-1].text()


def _completion_prompt(request: _CompletionRequest) -> tuple[list[str], str]:
    prompt = request.prompt
    if isinstance(prompt, str):
        tokens, echoed = tokenize(prompt), prompt
    else:
        tokens, echoed = _numbered(prompt), ""
    if not tokens:
        raise ApiError(400, "prompt must not be empty", param="prompt")
    return tokens, echoed


def _numbered(ids: Sequence[int]) -> list[str]:
    return [f"#{token}" for token in ids]


def _limit(request: _ChatRequest | _CompletionRequest) -> int | None:
    if isinstance(request, _ChatRequest):
        return request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    return _COMPLETION_TOKENS if request.max_tokens is None else request.max_tokens


def _context_length_error(remaining: int, prompt: int, answer: int) -> str:
    return (
        f"This model's maximum context length is {remaining} tokens, but {prompt + answer} were asked for "
        f"({prompt} in the prompt, {answer} in the answer). Shorten one of them."
    )


def _error_type(status: int) -> str:
    return "invalid_request_error" if status < 500 else "server_error"
