"""`python -m benchmarks.fuzz_rewriting [REQUESTS] [SEED]`: mutated requests and answers through exchanges that rewrite models.

No sockets. A request that is rewritten may differ from what came in one value only, and a JSON reader must find the other
model there. What a client gets may not depend on where its answer was cut. No memory may stay held, and nothing may fail
but with a rejection. A seed makes a run repeatable.
"""

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, Self, cast

import msgspec

from epp.endpoints.endpoint import Endpoint
from epp.ext_proc.answers import to_bytes
from epp.ext_proc.exchange import Exchange
from epp.ext_proc.exchange_settings import ExchangeSettings
from epp.ext_proc.model_restorer import ModelRestorer
from epp.request.body import MemoryBudget
from epp.request.inference_request import parse_request
from epp.request.model_rewrite import ModelRewrites, RewriteRule, RewriteTarget
from epp.request.subset import Subset
from epp.scheduling.pick import Pick
from epp.wire.messages.ext_proc_pb2 import HeaderValue, ProcessingMode, ProcessingRequest, ProcessingResponse

SERVED: Final = 'lora/"é"-v2'
_NEW: Final = msgspec.json.encode(SERVED)
_SOMEWHERE: Final = Endpoint(id="a", incarnation="1", address="10.0.0.1", port=8000, metrics_port=8000)
_DUPLEX, _BUFFERED = ProcessingMode.FULL_DUPLEX_STREAMED, ProcessingMode.BUFFERED
_FORM: Final = "multipart/form-data; boundary=x"
_KINDS: Final = (
    "application/json",
    "application/json; charset=utf-8",
    "application/x-www-form-urlencoded",
)
_PATHS: Final = (
    "chat/completions",
    "completions",
    "responses",
    "messages",
    "embeddings",
    "rerank",
    "nothing",
)
_REQUESTS: Final = (
    (
        "chat/completions",
        b'{"model":"m","messages":[{"role":"user","content":"hi \\"model\\": \\"m\\""}],"stream":true}',
    ),
    (
        "completions",
        b'{ "prompt" : "a\\\\" , "x" : {"model":"m"} , "model" : "m" , "mod\\u0065l":"\\ud83d\\ude00" }\n',
    ),
    (
        "responses",
        b'{"input":["a",{"b":[{"model":"m"}]}],"model":"\\u006d","tools":[],"model":"m"}',
    ),
    (
        "audio/transcriptions",
        b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--x--\r\n',
    ),
)
_ANSWERS: Final = (
    b'{"id":"1","model":"%s","choices":[{"message":{"model":"%s","content":"\\"model\\":"}}]}',
    b'{"type":"response.created","response":{ "model" : "%s","metadata":{"model":"%s"}}}',
    b'data: {"id":"1","created":1,"model":"%s","choices":[{"delta":{"content":"%s"}}]}\n\ndata: [DONE]\n\n',
    b'event: x\r\ndata: {"model":"%s"}\r\n\r\ndata:{"message":{"model":"%s"}}\n\ndata: [DONE]\n\n',
)
_TOKENS: Final = (
    *(
        b'"model"',
        b'"model":"m"',
        b"\\",
        b'"',
        b"{",
        b"}",
        b"[",
        b"]",
        b":",
        b",",
        b"\n",
        b"\r",
        b"data:",
        b"\\u",
    ),
    *(
        b"\\ud800",
        b"\xff",
        b"\xc3\xa9",
        b"1e999",
        b"null",
        b" " * 70,
        b"\0",
        _NEW,
        b'"response":{',
        b"--x",
        b"\r\n\r\n",
    ),
)


class RewritingFuzz:
    """One run; also the director of its exchanges. `outcomes` counts what became of the requests."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._memory = MemoryBudget(64 * 1024 * 1024)
        self._rewrites = ModelRewrites([RewriteRule("any", "", (), (RewriteTarget(SERVED),))])
        self._pick: Pick | None = None
        self.outcomes = Counter[str]()
        self.slowest = 0.0

    def request(self) -> None:
        """Sends one request and checks what would reach its worker."""
        rng = self._rng
        path, body = rng.choice(_REQUESTS)
        original, path = self._mutated(body), path if rng.random() < 0.8 else rng.choice(_PATHS)
        mode, has_length = rng.choice((_DUPLEX, _BUFFERED)), rng.random() < 0.5
        kind = _FORM if original.startswith(b"--x") else rng.choice(_KINDS)
        sent = {":method": "POST", ":path": f"/v1/{path}", "content-type": kind}
        sent |= {"content-length": str(len(original))} if has_length else {}
        exchange = Exchange(cast("Any", self), ExchangeSettings(), budget=self._memory)
        self._pick = None
        pieces = [original] if mode == _BUFFERED else self._cut(original)
        started = time.perf_counter()
        said = exchange.feed(_headers(sent, mode), 0)
        for number, piece in enumerate(pieces, 1):
            said += exchange.feed(_body(piece, last=number == len(pieces)), 0)
        self.slowest = max(self.slowest, time.perf_counter() - started)
        answers = [ProcessingResponse.FromString(to_bytes(answer)) for answer in said]
        exchange.close("end", 0)
        assert self._memory.held == 0, "bytes are held by nobody"
        self._check(original, answers, duplex=mode == _DUPLEX, has_length=has_length)

    def answer(self) -> None:
        """Restores one answer whole and in pieces."""
        template = self._rng.choice(_ANSWERS)
        body = self._mutated(template.replace(b"%s", _NEW[1:-1]))
        for events in (False, True):
            whole, cut = (self._restored(pieces, events=events) for pieces in ([body], self._cut(body)))
            assert whole == cut, f"it depends on where the answer is cut: {body!r}"

    def direct(
        self,
        headers: Mapping[str, str],
        body: bytes | None,
        subset: Subset | None,
        now: float,
        span: object = None,
    ) -> Pick:
        request = parse_request(headers, body, lambda: "r")
        target = self._rewrites.target(request.model, headers, self._rng) if request.model else None
        if target is not None and target != request.model:
            request.rewrite(target)
        self._pick = Pick(request, (_SOMEWHERE,))
        return self._pick

    @property
    def picks(self) -> Self:
        return self

    def release(self, pick: Pick, now: float) -> None: ...

    def _check(
        self, original: bytes, answers: list[ProcessingResponse], *, duplex: bool, has_length: bool
    ) -> None:
        if self._pick is None:
            assert answers[-1].HasField("immediate_response"), "a request without a pick is refused"
            self.outcomes["refused"] += 1
            return
        passed = _passed(original, answers, duplex=duplex)
        if self._pick.request.rewritten_from is None:
            assert passed == original
            self.outcomes["unchanged"] += 1
            return
        self.outcomes["rewritten"] += 1
        same_before = _same_bytes(original, passed)
        same_behind = _same_bytes(original[::-1], passed[::-1])
        assert same_before + same_behind >= len(passed) - len(_NEW), (
            f"more than the model changed: {original!r}"
        )
        assert _length(answers) == (str(len(passed)) if has_length else None)
        if not original.startswith(b"--x"):
            _check_json(original, passed)

    def _mutated(self, body: bytes) -> bytes:
        rng, data = self._rng, bytearray(body)
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(data) + 1)
            match rng.randrange(5):
                case 0:
                    data[at:at] = rng.choice(_TOKENS)
                case 1:
                    del data[at : at + rng.randrange(1, 8)]
                case 2:
                    data[at : at + 1] = bytes((rng.randrange(256),))
                case 3:
                    data[at:at] = data[at : at + rng.randrange(40)]
                case _:
                    data[at : at + rng.randrange(6)] = rng.choice(_TOKENS)
        return bytes(data)

    def _cut(self, body: bytes) -> list[bytes]:
        places = sorted(self._rng.randrange(len(body) + 1) for _ in range(self._rng.randrange(5)))
        return [body[begin:end] for begin, end in zip([0, *places], [*places, len(body)], strict=True)]

    def _restored(self, pieces: list[bytes], *, events: bool) -> bytes:
        restorer, seen = ModelRestorer(SERVED, "m", events=events), b""
        for piece in pieces:
            read = restorer.read(piece, 0)
            seen += piece if read is None else bytes(read)
        return seen + restorer.end(0)


def _passed(original: bytes, answers: list[ProcessingResponse], *, duplex: bool) -> bytes:
    """The body that reaches the worker."""
    if duplex:
        pieces = [answer.request_body.response.body_mutation.streamed_response for answer in answers[1:]]
        assert [piece.end_of_stream for piece in pieces] == [False] * (len(pieces) - 1) + [True]
        return b"".join(piece.body for piece in pieces)
    mutation = answers[-1].request_body.response.body_mutation
    return mutation.body if mutation.WhichOneof("mutation") else original


def _same_bytes(first: bytes, second: bytes) -> int:
    """How many bytes both begin with."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(first), len(second)))


def _length(answers: list[ProcessingResponse]) -> str | None:
    for answer in answers:
        common = getattr(answer, answer.WhichOneof("response") or "").response
        for option in common.header_mutation.set_headers:
            if option.header.key == "content-length":
                return str(option.header.raw_value, "ascii")
    return None


def _check_json(original: bytes, passed: bytes) -> None:
    """Python reads the same of both but the model."""
    try:
        expected = json.loads(original)
    except (ValueError, RecursionError):
        return  # our reader skips what it does not need, where Python's is stricter
    assert json.dumps(json.loads(passed)) == json.dumps(expected | {"model": SERVED})


def _headers(values: Mapping[str, str], mode: int) -> ProcessingRequest:
    message = ProcessingRequest()
    fields = (HeaderValue(key=key, raw_value=value.encode()) for key, value in values.items())
    message.request_headers.headers.headers.extend([field.SerializeToString() for field in fields])
    message.protocol_config.request_body_mode = cast("Any", mode)
    return message


def _body(piece: bytes, *, last: bool) -> ProcessingRequest:
    message = ProcessingRequest()
    message.request_body.body = piece
    message.request_body.end_of_stream = last
    return message


def run(count: int, seed: int) -> RewritingFuzz:
    """Sends `count` requests, and restores as many answers; raises AssertionError when an invariant breaks."""
    fuzz = RewritingFuzz(seed)
    for _ in range(count):
        fuzz.request()
        fuzz.answer()
    return fuzz


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**32)
    started = time.perf_counter()
    fuzz = run(count, seed)
    seconds = time.perf_counter() - started
    print(
        f"seed {seed}: {count} requests and answers in {seconds:.0f} s, slowest request {fuzz.slowest:.3f} s"
    )
    print(", ".join(f"{number} {outcome}" for outcome, number in sorted(fuzz.outcomes.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
