"""The bytes of one ext_proc stream, as Envoy 1.40 sends them for one chat completion."""

import json
from dataclasses import dataclass
from typing import Final

from epp.wire.http2.frames import LEAST_FRAME_SIZE
from epp.wire.messages.ext_proc_pb2 import HeaderValue, HttpHeaders, ProcessingMode, ProcessingRequest

PATH: Final = "/v1/chat/completions"
BEGINNINGS: Final = 64
"""So many prompts begin differently, as conversations and applications do; the middle of each is new."""

_HOLE: Final = b"%012d"
_BEGINNING: Final = _HOLE % 1
_MIDDLE: Final = _HOLE % 2
_PIECE: Final = 65_536
_REQUEST: Final = {
    ":method": "POST",
    ":path": PATH,
    ":scheme": "http",
    ":authority": "gateway.example.com",
    "user-agent": "OpenAI/Python 1.99.0",
    "content-type": "application/json",
    "accept": "application/json",
    "accept-encoding": "gzip, deflate",
    "authorization": "Bearer sk-0123456789abcdef0123456789abcdef",
    "x-stainless-lang": "python",
    "x-stainless-package-version": "1.99.0",
    "x-stainless-os": "Linux",
    "x-stainless-arch": "x64",
    "x-stainless-runtime": "CPython",
    "x-stainless-runtime-version": "3.12.3",
    "x-forwarded-proto": "http",
    "x-forwarded-for": "10.0.0.7",
    "x-request-id": "6f8d7c58-6e8f-4b3c-9c39-6b8c3b8f0a51",
    "x-envoy-expected-rq-timeout-ms": "15000",
}
_RESPONSE: Final = {
    ":status": "200",
    "content-type": "application/json",
    "date": "Mon, 01 Jan 2026 00:00:00 GMT",
    "server": "uvicorn",
    "x-envoy-upstream-service-time": "3",
}
_REWRITE: Final = {"x-llm-d-model-name-rewrite": "llama-3-70b-instruct"}
_REWRITTEN_TOKEN: Final = (
    b'data: {"id":"cmpl-1","object":"chat.completion.chunk","model":"llama-3-70b-instruct",'
    b'"choices":[{"delta":{"content":" fox"}}]}\n\n'
)
_TOKEN: Final = (
    b'data: {"id":"cmpl-1","object":"chat.completion.chunk","choices":[{"delta":{"content":" fox"}}]}\n\n'
)


@dataclass(frozen=True, slots=True)
class StreamTemplate:
    """`opening`: the payloads of DATA frames; `holes`: payload and offset of the two numbers in the prompt.

    `chunks`: how many chunks of the response Envoy sends to the picker.
    """

    opening: tuple[bytes, ...]
    holes: tuple[tuple[int, int], tuple[int, int]]
    body_size: int
    response_headers: bytes
    chunks: int
    chunk: bytes
    last_chunk: bytes

    def numbered(self, number: int) -> list[bytes]:
        """The opening with the number of one request written into it."""
        said = list(self.opening)
        for (at, place), value in zip(self.holes, (number % BEGINNINGS, number), strict=True):
            piece = said[at]
            said[at] = b"%s%012d%s" % (piece[:place], value, piece[place + len(_MIDDLE) :])
        return said


def numbered(text: bytes, number: int) -> bytes:
    """Writes the request's number into the holes of a body, or of bytes that contain it."""
    return text.replace(_BEGINNING, _HOLE % (number % BEGINNINGS)).replace(_MIDDLE, _HOLE % number)


def chat(size: int) -> bytes:
    """Returns a chat completion of `size` bytes, at least 512, with holes for its numbers."""
    first: dict[str, object] = {"role": "system", "content": "You are a helpful assistant."}
    request = {"model": "llama-3-8b", "stream": True, "temperature": 0.7, "max_tokens": 256}
    empty = json.dumps(request | {"messages": [first, {"role": "user", "content": ""}]})
    text = ("the quick brown fox jumps over the lazy dog. " * (size // 40))[: size - len(empty)]
    middle = size // 2 - 100
    text = (
        _BEGINNING.decode()
        + text[len(_BEGINNING) : middle]
        + _MIDDLE.decode()
        + text[middle + len(_MIDDLE) :]
    )
    return json.dumps(request | {"messages": [first, {"role": "user", "content": text}]}).encode()


def stream_template(size: int, chunks: int = 0, *, rewritten: bool = False) -> StreamTemplate:
    """`size`: bytes of the request body; `chunks`: of the response that Envoy sends to the picker.

    `rewritten`: a header asks for another model, which the chunks name.
    """
    body = chat(size)
    sent = _REQUEST | {"content-length": str(len(body))} | (_REWRITE if rewritten else {})
    opened = ProcessingRequest(request_headers=_headers(sent))
    received = _RESPONSE | ({"content-type": "text/event-stream"} if chunks else {})
    token = _REWRITTEN_TOKEN if rewritten else _TOKEN
    duplex = ProcessingMode.FULL_DUPLEX_STREAMED
    opened.protocol_config.request_body_mode = duplex
    opened.protocol_config.response_body_mode = duplex if chunks else ProcessingMode.NONE
    said = [
        opened,
        *(_body(body[at : at + _PIECE]) for at in range(0, len(body), _PIECE)),
        _body(b"", last=True),
    ]
    frames = []
    for message in map(prefixed, said):
        frames += [message[at : at + LEAST_FRAME_SIZE] for at in range(0, len(message), LEAST_FRAME_SIZE)]
    holes = _place(frames, _BEGINNING), _place(frames, _MIDDLE)
    return StreamTemplate(
        tuple(frames),
        holes,
        len(body),
        prefixed(ProcessingRequest(response_headers=_headers(received))),
        chunks,
        prefixed(_chunk(token, last=False)),
        prefixed(_chunk(token, last=True)),
    )


def prefixed(message: ProcessingRequest) -> bytes:
    """Adds the gRPC message prefix."""
    payload = message.SerializeToString()
    return b"\0" + len(payload).to_bytes(4, "big") + payload


def _place(frames: list[bytes], hole: bytes) -> tuple[int, int]:
    [(at, place)] = [(at, piece.find(hole)) for at, piece in enumerate(frames) if hole in piece]
    return at, place


def _headers(values: dict[str, str]) -> HttpHeaders:
    message = HttpHeaders()
    for key, value in values.items():
        message.headers.headers.append(HeaderValue(key=key, raw_value=value.encode()).SerializeToString())
    return message


def _body(piece: bytes, *, last: bool = False) -> ProcessingRequest:
    message = ProcessingRequest()
    message.request_body.body = piece
    message.request_body.end_of_stream = last
    return message


def _chunk(token: bytes, *, last: bool) -> ProcessingRequest:
    message = ProcessingRequest()
    message.response_body.body = token
    message.response_body.end_of_stream = last
    return message
