"""The requests to the prefill worker and to the decode worker, for each way in which a KV cache moves. Pure.

The fields are contracts: vLLM's `kv_transfer_params`, SGLang's `bootstrap_*`, TensorRT-LLM's `disaggregated_params`. Every
value that is not ours stays as the client wrote it, byte for byte (`msgspec.Raw`).
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec

from registry.disaggregation.cached_tokens import cached_tokens

Fields: TypeAlias = Mapping[str, Any]
"""A JSON object; each value encoded (`msgspec.Raw`) or one of ours."""

COMPLETIONS: Final = "/v1/completions"
RESPONSES: Final = "/v1/responses"
TOKENS_IN: Final = "/inference/v1/generate"
PATHS: Final = frozenset({"/v1/chat/completions", COMPLETIONS, "/v1/messages", RESPONSES, TOKENS_IN})
"""Requests with a prompt; all others go to the decode worker as they are."""
CACHE_THRESHOLD: Final = "cache_threshold"
"""The finish reason of a decode worker that had less of the prompt than `cache_hit_threshold`."""
_MOST_PROMPTS: Final = 1024
"""Prompts of one request that get a room each; a body of 3 MB may have a million."""
_FIRST_ID: Final = 1 << 42
"""TensorRT-LLM takes smaller numbers for its own requests."""
_EPOCH: Final = 1_672_531_200_000
"""2023-01-01 in ms, from which its ids count."""

_decoder: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_any: Final = msgspec.json.Decoder()
encode: Final = msgspec.json.Encoder().encode


class NotApartError(Exception):
    """The request cannot be computed on two workers; `reason` is a word for metrics, the text says why."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def read_object(body: bytes) -> dict[str, Any] | None:
    """None: it is no JSON object."""
    try:
        return dict(_decoder.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def value_of(fields: Fields, name: str) -> Any:
    """The decoded value; None if it is absent or cannot be read."""
    raw = fields.get(name)
    if not isinstance(raw, msgspec.Raw):
        return raw
    try:
        return _any.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class Prefilled:
    """Says what the decode worker is sent after the prefill worker's answer.

    `cached_tokens`: of the prompt, where only the prefill worker knows how many; None: the decode worker's answer says it.
    `finished`: the prefill worker's answer is the whole answer.
    """

    body: bytes
    short_body: bytes
    """The same, but ended after one token: it fetches the blocks for a client that has gone."""
    cached_tokens: int | None = None
    finished: bool = False


class NixlConnector:
    """vLLM with NIXL: the prefill worker computes one token and keeps the blocks, the decode worker fetches them."""

    name: Final = "nixlv2"
    holds_blocks: Final = True

    def prefill_body(self, path: str, fields: Fields) -> bytes:
        """Return what the prefill worker is sent. Raises NotApartError for a request that it cannot compute alone."""
        _check_single(path, fields)
        wanted = {"do_remote_decode": True, "do_remote_prefill": False} | dict.fromkeys(
            ("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")
        )
        return encode(_short(path, fields, {"kv_transfer_params": wanted}))

    def prefilled(self, path: str, fields: Fields, answer: Fields) -> Prefilled:
        """Raises NotApartError if the answer does not say where the blocks are."""
        transfer = answer.get("kv_transfer_params")
        if not isinstance(value_of(answer, "kv_transfer_params"), dict):
            raise NotApartError("answer", "its answer has no kv_transfer_params")
        own = {"kv_transfer_params": transfer}
        return Prefilled(
            encode({**fields, **own}),
            encode(_short(path, fields, own)),
            cached_tokens(value_of(answer, "usage")),
        )


class SharedStorageConnector:
    """vLLM with a KV cache that both workers read from storage: nothing has to be handed over.

    With `cache_hit_threshold` the decode worker is asked first, and answers `cache_threshold` if it has too little.
    """

    name: Final = "shared-storage"
    holds_blocks: Final = False

    def prefill_body(self, path: str, fields: Fields) -> bytes:
        return encode(_short(path, fields, {"cache_hit_threshold": 0}))

    def prefilled(self, path: str, fields: Fields, answer: Fields) -> Prefilled:
        body = encode({**fields, "cache_hit_threshold": 0})
        return Prefilled(body, body)

    def decodes_first(self, fields: Fields) -> bool:
        return "cache_hit_threshold" in fields


class TrtllmConnector:
    """TensorRT-LLM: the context server computes the prompt, and what it answers begins the generation.

    `now`: seconds since 1970. `machine`: 10 bits that tell this sidecar from others in an id.
    """

    name: Final = "trtllm"
    holds_blocks: Final = True

    def __init__(self, now: Callable[[], float], machine: int | None = None) -> None:
        self._now = now
        self._machine = secrets.randbits(10) if machine is None else machine
        self._count = secrets.randbits(12)

    def prefill_body(self, path: str, fields: Fields) -> bytes:
        """Return what the prefill worker is sent. Raises NotApartError for a request that it cannot compute alone."""
        _check_single(path, fields)
        if path not in (COMPLETIONS, "/v1/chat/completions"):
            raise NotApartError("path", f"TensorRT-LLM computes no {path} apart")
        wanted: dict[str, Any] = {"request_type": "context_only", "disagg_request_id": self._next_id()}
        given = value_of(fields, "disaggregated_params")
        if isinstance(given, dict) and isinstance(given.get("conversation_id"), str):
            wanted["conversation_id"] = given["conversation_id"]
        return encode({**_without(fields, "stream_options"), "stream": False, "disaggregated_params": wanted})

    def prefilled(self, path: str, fields: Fields, answer: Fields) -> Prefilled:
        """Raises NotApartError if the answer does not say how to go on, or has ended for a client that streams."""
        choices = value_of(answer, "choices")
        choice = choices[0] if isinstance(choices, list) and len(choices) == 1 else None
        choice = choice if isinstance(choice, dict) else {}
        given, reason = choice.get("disaggregated_params"), choice.get("finish_reason")
        if isinstance(reason, str) and reason not in ("length", "not_finished"):
            # one token or none: the other server computes it as a stream
            if value_of(fields, "stream") is True:
                raise NotApartError("finished", "the answer ended with the prompt")
            choice.pop("disaggregated_params", None)
            return Prefilled(encode({**answer, "choices": [choice]}), b"", finished=True)
        if not isinstance(given, dict) or not all(
            isinstance(given.get(name), int) for name in ("ctx_request_id", "disagg_request_id")
        ):
            raise NotApartError("answer", "its answer has no disaggregated_params with ids")
        own = {
            "disaggregated_params": given
            | {"request_type": "generation_only", "ctx_usage": answer.get("usage")},
            "prompt" if path == COMPLETIONS else "prompt_token_ids": answer.get("prompt_token_ids"),
        }
        return Prefilled(
            encode({**fields, **own}),
            encode({**_without(fields, "stream_options"), **own, "stream": False, "max_tokens": 2}),
        )

    def _next_id(self) -> int:
        """41 bits of milliseconds, 10 of the machine, 12 of a counter, as its own proxy makes them."""
        self._count = (self._count + 1) & 0xFFF
        elapsed = int(self._now() * 1000) - _EPOCH
        return max(_FIRST_ID, (elapsed << 22 | self._machine << 12 | self._count) & (1 << 63) - 1)


class SglangConnector:
    """SGLang: both workers get the request at once, and meet in a room at the prefill worker's bootstrap port."""

    name: Final = "sglang"
    holds_blocks: Final = True
    LEG_TIMEOUT: Final = 330.0
    """Seconds. The prefill worker gives up by itself after 300 s without the decode worker; it must not be cancelled before."""

    def __init__(self, bootstrap_port: int) -> None:
        self._bootstrap_port = bootstrap_port

    def bodies(self, path: str, fields: Fields, prefill_host: str) -> tuple[bytes, bytes]:
        """The prefill worker's, and the decode worker's. The room is a new one each time. Raises NotApartError."""
        count = _prompts(path, fields)
        if count is not None and count > _MOST_PROMPTS:
            raise NotApartError("several", f"it has {count} prompts; expected {_MOST_PROMPTS} at most")
        rooms = [secrets.randbits(63) for _ in range(count or 1)]
        meeting: dict[str, Any] = {
            "bootstrap_host": prefill_host,
            "bootstrap_port": self._bootstrap_port,
            "bootstrap_room": rooms[0],
        }
        if count is not None:  # a batch: a list for each
            meeting = {
                "bootstrap_host": [prefill_host] * count,
                "bootstrap_port": [self._bootstrap_port] * count,
                "bootstrap_room": rooms,
            }
        prefilling = _short(path, fields, meeting)
        prefilling.pop("min_tokens", None)
        return encode(prefilling), encode({**fields, **meeting})


SequentialConnector: TypeAlias = NixlConnector | SharedStorageConnector | TrtllmConnector
"""First the prefill worker, then the decode worker."""
Connector: TypeAlias = SequentialConnector | SglangConnector


def finish_reason(document: bytes) -> str:
    """Why the first choice of an answer ended; "" if it says nothing."""
    choices = value_of(read_object(document) or {}, "choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    reason = choice.get("finish_reason") if isinstance(choice, dict) else None
    return reason if isinstance(reason, str) else ""


def first_finish_reason(stream: bytes) -> str | None:
    """Reads the events of a stream so far: why it ended, "" once there is a token, None if neither is known."""
    # bounded: what a probe holds
    for line in stream.split(b"\n")[:-1]:
        if not line.startswith(b"data:"):
            continue
        event = line[5:].strip()
        if reason := finish_reason(event):
            return reason
        choices = value_of(read_object(event) or {}, "choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if event == b"[DONE]" or (isinstance(choice, dict) and _has_token(choice)):
            return ""
    return None


def _has_token(choice: Mapping[str, Any]) -> bool:
    """The first event of a chat has the role only."""
    delta = choice.get("delta")
    told = delta if isinstance(delta, dict) else choice
    return any(value for name, value in told.items() if name not in ("role", "index"))


def _short(path: str, fields: Fields, own: Fields) -> dict[str, Any]:
    """The request ended after one token and not streamed, with the fields of ours."""
    short = {**_without(fields, "stream_options"), **own, "stream": False}
    if path == TOKENS_IN:
        given = (
            read_object(bytes(raw)) if isinstance(raw := fields.get("sampling_params"), msgspec.Raw) else None
        )
        return short | {"sampling_params": {**(given or {}), "max_tokens": 1, "min_tokens": 1}}
    if path == RESPONSES:
        return short | {"max_output_tokens": 1}
    return short | {"max_tokens": 1, "max_completion_tokens": 1, "min_tokens": 1}


def _without(fields: Fields, name: str) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key != name}


def _check_single(path: str, fields: Fields) -> None:
    """Raises NotApartError if there are several answers: a prefill worker's answer tells the blocks of one only."""
    if any(isinstance(many := value_of(fields, name), int) and many > 1 for name in ("n", "best_of")):
        raise NotApartError(
            "several", "it asks for several answers, and the blocks of one can be handed over"
        )
    count = _prompts(path, fields)
    if count is not None and count != 1:
        raise NotApartError("several", "it has several prompts, and the blocks of one can be handed over")


def _prompts(path: str, fields: Fields) -> int | None:
    """How many prompts a list of prompts has; None: it is one prompt, as text or as a list of tokens."""
    prompt = value_of(fields, "prompt") if path == COMPLETIONS else None
    is_list = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
    return len(prompt) if is_list and isinstance(prompt, list) else None
