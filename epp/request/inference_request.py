"""Reads from a request what a pick depends on: model, prompt, streaming, objective, fairness id."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeAlias, TypeVar, cast

import msgspec
from msgspec import Raw

from epp.request.control_headers import FAIRNESS_ID, OBJECTIVE
from epp.request.inference_api import (
    APIS,
    APIS_WITHOUT_OBJECTS,
    MODEL_ONLY,
    MODEL_ONLY_PATHS,
    Prompt,
    api_of,
    has_many_objects,
    replace_lone_surrogates,
)
from epp.request.model_value import form_model_span
from epp.request.rejection import Rejection

if TYPE_CHECKING:  # what only parses requests need not load numpy
    from epp.endpoints.endpoint import Endpoint

Body: TypeAlias = bytes | bytearray | memoryview
Decoded = TypeVar("Decoded")
Value = TypeVar("Value")
_JSON: Final = "application/json"
_FORM: Final = "application/x-www-form-urlencoded"
"""curl's default for any body; JSON is accepted under it."""

TOKEN_BYTES: Final = 4
"""Bytes of a prompt as JSON that are taken for one token: there is no tokenizer. The Go picker estimates the same."""
DEFAULT_FAIRNESS_ID: Final = "default-flow"
_PATH_HEADERS: Final = (":path", "x-original-path", "x-forwarded-path")
_DEFAULT_PATH: Final = "/v1/completions"
# bounded: nobody writes to it
_NO_HEADERS: Final[Mapping[str, str]] = {}


class PrefixChain:
    """A prompt as a chain of block hashes, each of which covers the prompt up to the end of its block.

    `unit_tokens`: tokens of a unit, the shortest block. In units: `units`, the length of the prompt; `ends` of the blocks,
    the last one as if it were full (a shared table, which may go on behind it). `claims`: the endpoints, by key, that are
    believed to hold the chain since the pick, each with the number of its claim in the index. `held`: units that each of them
    held before.
    """

    __slots__ = ("claims", "ends", "hashes", "held", "unit_tokens", "units")

    def __init__(self, hashes: Sequence[int], unit_tokens: int, units: int, ends: Sequence[int]) -> None:
        self.hashes = hashes
        self.unit_tokens = unit_tokens
        self.units = units
        self.ends = ends
        self.claims: dict[tuple[str, str], int] = {}
        self.held: tuple[int, ...] = ()

    def units_in(self, count: int) -> int:
        """The length of the first `count` blocks in units."""
        return min(self.ends[count - 1], self.units) if count else 0


class RequestCount(Protocol):
    """A data producer's counts for a request from the pick until its end."""

    def answered(self) -> None:
        """The first piece of a streamed answer came. Only reported where the data plane sends the bodies of answers."""

    def ended(self) -> None:
        """The request is over, for any reason. May be called twice."""


class AwaitedFirstByte(Protocol):
    """The first byte of a streamed answer, which a data producer learns from. `seconds`: from the pick, as expected; negative: it
    does not know.
    """

    seconds: float

    def came(self, at: float, now: float, answered_at: float) -> None:
        """It came at `at`, and is heard of now. `answered_at`: when the headers of the answer came; negative: not known."""

    def ended(self) -> None:
        """The request is over, for any reason. May be called twice, and before a log tells of the byte."""


class InferenceRequest:
    """One request. Sizes in bytes; `prompt_size` is that of the prompt, messages or input as JSON.

    `model` is empty if the request names none: a GET, or a path or content type that is not read. `rewritten_from`: the model
    that the client named, if `model` is another one, which serves the request. `prompt` and `body`, of which it is a part, are
    set to None once the request is scheduled, since they keep the whole body in memory. Plugins keep with it: `prefixes`,
    the prompt's block hashes, by data producer; `data`, anything else (`RequestData`); `counts`, what data producers count for
    it until its end; `awaited`, the first byte of its answer; `peer`, the endpoint that another profile chose for it, if the
    profile handler says so.
    """

    __slots__ = (
        "awaited",
        "body",
        "body_size",
        "counts",
        "data",
        "fairness_id",
        "headers",
        "model",
        "objective",
        "path",
        "peer",
        "prefixes",
        "priority",
        "prompt",
        "prompt_size",
        "request_id",
        "rewritten_from",
        "streaming",
    )

    def __init__(self, request_id: str, path: str, headers: Mapping[str, str], model: str = "") -> None:
        self.request_id = request_id
        self.path = path
        self.headers = headers
        self.model = model
        self.rewritten_from: str | None = None
        self.streaming = False
        self.objective: str | None = None
        self.priority = 0
        self.fairness_id = DEFAULT_FAIRNESS_ID
        self.body: Body | None = None
        self.body_size = 0
        self.prompt_size = 0
        self.prompt: Prompt | None = None
        self.prefixes: dict[object, PrefixChain] = {}
        self.data: dict[object, object] = {}
        self.peer: Endpoint | None = None
        self.counts: tuple[RequestCount, ...] = ()
        self.awaited: AwaitedFirstByte | None = None

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, estimated; 0 without one."""
        return tokens_in(self.prompt_size)

    def forget_client(self, most: int) -> None:
        """It is over: keep no headers and no body, and of each text `most` characters."""
        self.headers = _NO_HEADERS
        self.prompt = self.body = None
        self.request_id = self.request_id[:most]
        self.path = self.path[:most]
        self.model = self.model[:most]
        self.fairness_id = self.fairness_id[:most]
        if self.objective is not None:
            self.objective = self.objective[:most]
        if self.rewritten_from is not None:
            self.rewritten_from = self.rewritten_from[:most]

    def rewrite(self, model: str) -> None:
        """Let that model serve the request; its workers' prefix caches know the prompt under that name."""
        self.rewritten_from = self.model
        self.model = model
        if self.prompt is not None:
            self.prompt.model = model


class RequestData(Generic[Value]):
    """The notes that one plugin keeps with each request until it is served or has failed, as values of one type."""

    __slots__ = ()

    def of(self, request: InferenceRequest) -> Value | None:
        return cast("Value | None", request.data.get(self))

    def keep(self, request: InferenceRequest, value: Value) -> None:
        request.data[self] = value


def parse_request(
    headers: Mapping[str, str], body: Body | None, new_id: Callable[[], str]
) -> InferenceRequest:
    """Parse a request; `headers` with lower-case names, `new_id` makes an id for one without `x-request-id`.

    `body` None: there may be one, but the pick does not see it. Completions, chat, embeddings and responses must be valid
    JSON, otherwise `Rejection` 400. For other known APIs only the model is read; a body that is not JSON is not read.
    """
    request = passthrough_request(headers, body, new_id)
    if body is None:
        return request
    if not body:
        _check_bodyless(request, headers.get(":method", ""))
        return request
    content_type = headers.get("content-type", _JSON)
    kind = _JSON if content_type == _JSON else content_type.partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        request.model = _form_model(content_type, bytes(body))
    elif kind == _JSON or kind.endswith("+json") or (kind == _FORM and _is_object(body)):
        _read_json(request, body)
    return request


def passthrough_request(
    headers: Mapping[str, str], body: Body | None, new_id: Callable[[], str]
) -> InferenceRequest:
    """The request without reading its body: no model, routed by load only."""
    request = InferenceRequest(headers.get("x-request-id") or new_id(), request_path(headers), headers)
    request.objective = _first_value(headers, OBJECTIVE)
    request.fairness_id = _first_value(headers, FAIRNESS_ID) or DEFAULT_FAIRNESS_ID
    request.body_size = len(body or b"")
    return request


def tokens_in(prompt_size: int) -> int:
    """The tokens of a prompt of so many bytes as JSON, rounded up."""
    return (prompt_size + TOKEN_BYTES - 1) // TOKEN_BYTES


def request_path(headers: Mapping[str, str]) -> str:
    """The path as the client sent it, without its query; `headers` with lower-case names."""
    path = _first_value(headers, _PATH_HEADERS) or _DEFAULT_PATH
    return path.partition("?")[0].rstrip("/") or "/"


def _first_value(headers: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    for name in names:
        if (value := headers.get(name)) and (value := value.strip()):
            return value
    return None


_DECODE_ERRORS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_OBJECT_DECODER: Final = msgspec.json.Decoder(dict[str, Raw])
_NO_MODEL: Final = "the request body has no 'model': a string that names the model is required"


def _check_bodyless(request: InferenceRequest, method: str) -> None:
    if method == "POST" and api_of(request.path) in APIS:
        raise _bad_request(_NO_MODEL)


def _decode(decoder: msgspec.json.Decoder[Decoded], body: Body) -> Decoded:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        repaired = replace_lone_surrogates(body)
        if repaired is None:
            raise
        return decoder.decode(repaired)


def _is_object(body: Body) -> bool:
    try:
        _decode(_OBJECT_DECODER, body)
    except _DECODE_ERRORS:
        return False
    return True


def _read_json(request: InferenceRequest, body: Body) -> None:
    end = api_of(request.path)
    if end in MODEL_ONLY_PATHS:
        _read_model_only(request, body)
    if end is None or end in MODEL_ONLY_PATHS:
        return
    decoder, name = (APIS_WITHOUT_OBJECTS if has_many_objects(body) else APIS)[end]
    try:
        decoded = _decode(decoder, body)
        size = decoded.prompt_size()
    except msgspec.ValidationError as error:
        raise _bad_request(f"the request body has a field of the wrong type: {error}") from error
    except _DECODE_ERRORS as error:
        raise _bad_request(f"the request body is not valid JSON: {_json_fault(error)}") from error
    if not decoded.model:
        raise _bad_request(_NO_MODEL)
    if not size:
        raise _bad_request(f"the request body has no {name!r}: {request.path} requires one that is not empty")
    request.model = decoded.model
    request.streaming = bool(decoded.stream)
    request.prompt_size = size
    request.prompt = decoded
    request.body = body


def _read_model_only(request: InferenceRequest, body: Body) -> None:
    try:
        decoded = _decode(MODEL_ONLY, body)
    except _DECODE_ERRORS:
        return  # the worker answers for a body of an API that the picker does not know
    request.model = decoded.model or ""
    request.streaming = bool(decoded.stream)


def _bad_request(message: str) -> Rejection:
    return Rejection(400, "invalid_request_error", message)


def _json_fault(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return "not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)


def _form_model(content_type: str, body: bytes) -> str:
    span = form_model_span(content_type, body)
    return "" if span is None else body[span[0] : span[1]].decode("utf-8", "replace").strip()
