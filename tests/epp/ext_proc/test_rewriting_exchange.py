"""One request under another model's name, and its answer back: the exchange in every body mode of Envoy."""

import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks import fuzz_rewriting
from epp.ext_proc.exchange_settings import ExchangeSettings
from epp.ext_proc.response_body import ResponseBodyReader, ResponseHead
from epp.request.body import Buffer
from epp.scheduling.pick import Pick
from epp.wire.messages.ext_proc_pb2 import ProcessingResponse
from tests.decoded_exchange import DecodedExchange, read
from tests.epp.ext_proc.test_deferral import Later
from tests.epp.json_texts import cut

BODY = b'{"stream":true,"model" : "m","prompt":"\\"model\\":\\"m\\""}'
REWRITTEN = BODY.replace(b' "m"', b' "llama-3-8b"')
ANSWER = b'{"id":"1","model":"llama-3-8b","choices":[{"text":"\\"model\\":\\"llama-3-8b\\""}]}'
RESTORED = ANSWER.replace(b'"model":"llama-3-8b"', b'"model":"m"', 1)
JSON = {"content-type": "application/json", "content-length": str(len(ANSWER))}
DUPLEX, BUFFERED, STREAMED = "FULL_DUPLEX_STREAMED", "BUFFERED", "STREAMED"


def rewriting(picking: Any) -> Pick:
    pick: Pick = picking("10.0.0.1:8000")
    pick.request.rewrite("llama-3-8b")
    return pick


def header(answer: ProcessingResponse, name: str) -> str | None:
    common = getattr(answer, answer.WhichOneof("response") or "").response
    values = [
        option.header.raw_value.decode()
        for option in common.header_mutation.set_headers
        if option.header.key == name
    ]
    assert len(values) < 2
    return values[0] if values else None


def body_of(answers: Sequence[ProcessingResponse], kind: str) -> bytes:
    """The body that Envoy forwards in FULL_DUPLEX_STREAMED."""
    pieces = [
        getattr(answer, kind).response.body_mutation.streamed_response
        for answer in answers
        if answer.HasField(kind)
    ]
    assert not any(piece.end_of_stream for piece in pieces[:-1])
    return b"".join(piece.body for piece in pieces)


def asked(
    exchange: DecodedExchange, messages: Any, mode: str = DUPLEX, response_mode: str = DUPLEX, **sent: str
) -> list[ProcessingResponse]:
    """Send the request in one piece."""
    answers = exchange.ask(messages.headers(sent, mode=mode, response_mode=response_mode), 0)
    return [*answers, *exchange.ask(messages.body(BODY, end_of_stream=True), 0)]


@pytest.fixture
def exchange(director: Any, picking: Any) -> DecodedExchange:
    director.outcome = rewriting(picking)
    return DecodedExchange(director, ExchangeSettings())


@pytest.mark.parametrize("mode", [DUPLEX, BUFFERED])
@pytest.mark.parametrize("length", [None, str(len(BODY))])
def test_the_worker_gets_the_body_with_the_other_model_and_its_length(
    exchange: DecodedExchange, messages: Any, length: str | None, mode: str
) -> None:
    answers = asked(exchange, messages, mode, **({} if length is None else {"content-length": length}))
    routed, mutation = answers[0 if mode == DUPLEX else -1], answers[-1].request_body.response.body_mutation
    if mode == DUPLEX:
        assert body_of(answers, "request_body") == REWRITTEN
        assert mutation.streamed_response.end_of_stream
    else:
        assert mutation.body == REWRITTEN
    assert header(routed, "content-length") == (None if length is None else str(len(REWRITTEN)))
    assert header(routed, "x-gateway-destination-endpoint") == "10.0.0.1:8000"


def test_a_body_that_ends_with_trailers_is_rewritten(exchange: DecodedExchange, messages: Any) -> None:
    exchange.ask(messages.headers(), 0)
    exchange.ask(messages.body(BODY, end_of_stream=False), 0)
    answers = exchange.ask(messages.trailers(), 0)
    assert body_of(answers, "request_body") == REWRITTEN
    assert not answers[-2].request_body.response.body_mutation.streamed_response.end_of_stream


@pytest.mark.parametrize("mode", [DUPLEX, BUFFERED])
def test_a_request_that_waits_is_rewritten_when_it_goes(
    director: Any, picking: Any, messages: Any, mode: str
) -> None:
    later = director.outcome = Later()
    exchange, said = DecodedExchange(director, ExchangeSettings()), list[ProcessingResponse]()
    exchange.on_answer(lambda answers: said.extend(read(answers)), said.append)
    asked(exchange, messages, mode)
    later.settle(rewriting(picking), 5)
    mutation = said[-1].request_body.response.body_mutation
    assert (mutation.streamed_response.body if mode == DUPLEX else mutation.body) == REWRITTEN


def test_at_every_split_point_of_the_request(director: Any, picking: Any, messages: Any) -> None:
    for at in range(len(BODY) + 1):
        director.outcome = rewriting(picking)
        exchange = DecodedExchange(director, ExchangeSettings())
        exchange.ask(messages.headers(), 0)
        exchange.ask(messages.body(BODY[:at], end_of_stream=False), 0)
        answers = exchange.ask(messages.body(BODY[at:], end_of_stream=True), 0)
        assert body_of(answers, "request_body") == REWRITTEN


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 200_000), st.lists(st.integers(0, 300_000), max_size=6))
def test_a_large_body_in_any_pieces(
    director: Any, picking: Any, messages: Any, size: int, places: list[int]
) -> None:
    """Larger than an answer may be, with the model behind or before the prompt."""
    for order in (("model", "prompt"), ("prompt", "model")):
        fields = {"model": "m", "prompt": "x" * size}
        body, expected = (
            json.dumps({name: (fields | {"model": model})[name] for name in order}).encode()
            for model in ("m", "llama-3-8b")
        )
        director.outcome = rewriting(picking)
        exchange = DecodedExchange(director, ExchangeSettings())
        exchange.ask(messages.headers(), 0)
        for piece in cut(body, places):
            exchange.ask(messages.body(piece, end_of_stream=False), 0)
        assert body_of(exchange.ask(messages.body(b"", end_of_stream=True), 0), "request_body") == expected


def test_the_answer_names_the_model_that_was_asked_for(exchange: DecodedExchange, messages: Any) -> None:
    asked(exchange, messages)
    (head,) = exchange.ask(messages.response_headers(values=JSON), 0)
    assert list(head.response_headers.response.header_mutation.remove_headers) == ["content-length"]
    assert not exchange.may_end
    answers = exchange.ask(messages.response_body(ANSWER, end_of_stream=True), 0)
    assert body_of(answers, "response_body") == RESTORED
    assert answers[-1].response_body.response.body_mutation.streamed_response.end_of_stream
    assert exchange.may_end


@pytest.mark.parametrize("last", ["piece", "empty piece", "trailers"])
def test_at_every_split_point_of_the_answer(director: Any, picking: Any, messages: Any, last: str) -> None:
    for at in range(len(ANSWER) + 1):
        director.outcome = rewriting(picking)
        exchange = DecodedExchange(director, ExchangeSettings())
        asked(exchange, messages)
        exchange.ask(messages.response_headers(values=JSON), 0)
        answers = exchange.ask(messages.response_body(ANSWER[:at], end_of_stream=False), 0)
        answers += exchange.ask(messages.response_body(ANSWER[at:], end_of_stream=last == "piece"), 0)
        if last == "empty piece":
            answers += exchange.ask(messages.response_body(b"", end_of_stream=True), 0)
        if last == "trailers":
            answers += exchange.ask(messages.response_trailers(), 0)
            assert answers[-1].WhichOneof("response") == "response_trailers"
        assert body_of(answers, "response_body") == RESTORED


def streamed_body(exchange: DecodedExchange, messages: Any, pieces: Sequence[bytes]) -> bytes:
    """The body that Envoy forwards in STREAMED: each piece, or what the picker puts in its place."""
    out = b""
    for number, piece in enumerate(pieces, 1):
        message = messages.response_body(piece, end_of_stream=number == len(pieces))
        (answer,) = exchange.ask(message, 0)
        mutation = answer.response_body.response.body_mutation
        kind = mutation.WhichOneof("mutation")
        out += {None: piece, "body": mutation.body, "clear_body": b""}[kind]
    return out


def test_at_every_split_point_of_an_answer_that_envoy_keeps(
    director: Any, picking: Any, messages: Any
) -> None:
    for at in range(len(ANSWER) + 1):
        director.outcome = rewriting(picking)
        exchange = DecodedExchange(director, ExchangeSettings())
        asked(exchange, messages, response_mode=STREAMED)
        exchange.ask(messages.response_headers(values=JSON), 0)
        assert not exchange.ends_early
        assert streamed_body(exchange, messages, [ANSWER[:at], ANSWER[at:], b""]) == RESTORED
        assert exchange.ends_early


def test_a_buffered_answer_is_replaced_with_its_length(exchange: DecodedExchange, messages: Any) -> None:
    asked(exchange, messages, response_mode=BUFFERED)
    (head,) = exchange.ask(messages.response_headers(values=JSON), 0)
    assert not head.response_headers.response.header_mutation.remove_headers
    (answer,) = exchange.ask(messages.response_body(ANSWER, end_of_stream=True), 0)
    assert answer.response_body.response.body_mutation.body == RESTORED
    assert header(answer, "content-length") == str(len(RESTORED))


def test_a_picker_that_reads_no_body_gives_up_a_stream_that_envoy_keeps(
    director: Any, picking: Any, messages: Any
) -> None:
    """Envoy sends on what it has a copy of, and asks no more; of any other stream it has none."""
    for response_mode, ends in ((STREAMED, True), (DUPLEX, False), ("NONE", False)):
        exchange = DecodedExchange(director, ExchangeSettings())
        asked(exchange, messages, response_mode=response_mode)
        assert not exchange.ends_early
        exchange.ask(messages.response_headers(values=JSON), 0)
        assert exchange.ends_early == ends
        assert not ends or exchange.may_end


@pytest.mark.parametrize("response_mode", [DUPLEX, STREAMED, BUFFERED])
def test_a_compressed_answer_passes_as_it_is(
    exchange: DecodedExchange, messages: Any, response_mode: str
) -> None:
    asked(exchange, messages, response_mode=response_mode)
    (head,) = exchange.ask(messages.response_headers(values=JSON | {"content-encoding": "gzip"}), 0)
    assert not head.response_headers.response.HasField("header_mutation")
    (answer,) = exchange.ask(messages.response_body(ANSWER, end_of_stream=True), 0)
    assert body_of([answer], "response_body") == (ANSWER if response_mode == DUPLEX else b"")


def test_a_data_plane_without_bodies_is_named_in_the_log_once(
    director: Any, picking: Any, messages: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rules = ExchangeSettings()
    with caplog.at_level(logging.WARNING):
        for mode in ("NONE", "BUFFERED_PARTIAL"):
            director.outcome = rewriting(picking)
            exchange = DecodedExchange(director, rules)
            asked(exchange, messages, response_mode=mode)
            exchange.ask(messages.response_headers(values=JSON), 0)
            assert exchange.may_end
    assert [record.message.count("--response-body STREAMED") for record in caplog.records] == [1]


class Upper:
    """Holds back the last byte of each piece, as a reader may, and writes all in capitals."""

    changes_body = True

    def __init__(self) -> None:
        self.held = b""
        self.times: list[float] = []

    def read(self, piece: Buffer, now: float) -> Buffer | None:
        self.times.append(now)
        whole = self.held + bytes(piece)
        self.held = whole[-1:]
        return whole[:-1].upper()

    def end(self, now: float) -> bytes:
        self.times.append(now)
        return self.held.upper()


class Watcher:
    """Changes nothing."""

    changes_body = False

    def __init__(self, seen: list[bytes]) -> None:
        self.seen = seen

    def read(self, piece: Buffer, now: float) -> Buffer | None:
        self.seen.append(bytes(piece))
        return None

    def end(self, now: float) -> bytes:
        self.seen.append(b"end")
        return b""


class Faulty(Watcher):
    def read(self, piece: Buffer, now: float) -> Buffer | None:
        raise ZeroDivisionError

    def end(self, now: float) -> bytes:
        raise ZeroDivisionError


Opener = Callable[[Pick, ResponseHead, float, float], ResponseBodyReader | None]


def reading(director: Any, messages: Any, *openers: Opener, response_mode: str = DUPLEX) -> DecodedExchange:
    """An exchange with those readers, whose response headers came at 5."""
    exchange = DecodedExchange(director, ExchangeSettings(response_readers=openers))
    asked(exchange, messages, response_mode=response_mode)
    exchange.ask(messages.response_headers("201", values=JSON), 5)
    return exchange


def test_readers_are_opened_with_what_is_known_of_the_response(director: Any, messages: Any) -> None:
    opened: list[tuple[Any, ...]] = []

    def opener(pick: Pick, head: ResponseHead, started: float, now: float) -> None:
        opened.append((pick, head.status, head.media_type, head.headers["content-length"], started, now))

    reading(director, messages, opener)
    assert opened == [(director.outcome, 201, "application/json", str(len(ANSWER)), 0, 5)]


@pytest.mark.parametrize("response_mode", [DUPLEX, STREAMED])
def test_several_readers_read_one_after_the_other(director: Any, messages: Any, response_mode: str) -> None:
    before, after = list[bytes](), list[bytes]()
    upper = Upper()
    exchange = reading(
        director,
        messages,
        lambda *_: Watcher(before),
        lambda *_: upper,
        lambda *_: Watcher(after),
        response_mode=response_mode,
    )
    answers = [
        exchange.ask(messages.response_body(piece, end_of_stream=piece == b"ef"), 7)
        for piece in (b"a", b"bcd", b"ef")
    ]
    assert before == [b"a", b"bcd", b"ef", b"end"]
    assert after == [b"", b"ABC", b"DE", b"F", b"end"]
    assert upper.times == [7, 7, 7, 7]
    if response_mode == DUPLEX:
        assert body_of([answer for some in answers for answer in some], "response_body") == b"ABCDEF"


@pytest.mark.parametrize("response_mode", [DUPLEX, STREAMED])
def test_a_fault_of_a_reader_leaves_the_answer_whole(
    director: Any, messages: Any, response_mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen = list[bytes]()

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    exchange = reading(
        director,
        messages,
        lambda *_: Faulty([]),
        broken,
        lambda *_: Watcher(seen),
        response_mode=response_mode,
    )
    answers = exchange.ask(messages.response_body(b"abc", end_of_stream=True), 7)
    assert seen == [b"abc", b"end"]
    assert body_of(answers, "response_body") == (b"abc" if response_mode == DUPLEX else b"")
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]


def test_a_response_without_a_body_is_not_read(director: Any, messages: Any) -> None:
    seen = list[bytes]()
    exchange = DecodedExchange(director, ExchangeSettings(response_readers=(lambda *_: Watcher(seen),)))
    asked(exchange, messages)
    exchange.ask(messages.response_headers("204", end_of_stream=True), 5)
    assert exchange.may_end
    assert seen == []


def test_an_answer_that_comes_before_the_end_of_its_request_is_read(director: Any, messages: Any) -> None:
    seen = list[bytes]()
    exchange = DecodedExchange(director, ExchangeSettings(response_readers=(lambda *_: Watcher(seen),)))
    exchange.ask(messages.headers({":method": "CONNECT"}, response_mode=STREAMED), 0)
    exchange.ask(messages.body(b"x", end_of_stream=False), 0)
    exchange.ask(messages.response_headers(values=JSON), 1)
    exchange.ask(messages.response_body(b"abc", end_of_stream=True), 2)
    assert seen == [b"abc", b"end"]
    assert not exchange.ends_early
    exchange.ask(messages.body(b"x", end_of_stream=True), 3)
    assert exchange.ends_early


def test_a_stream_may_break_at_any_moment(director: Any, messages: Any) -> None:
    exchange = reading(director, messages, lambda *_: Upper())
    exchange.ask(messages.response_body(b"abc", end_of_stream=False), 7)
    exchange.close("reset", 8)
    assert read(exchange.feed(messages.response_body(b"d", end_of_stream=True), 9)) == []
    assert director.released == [director.outcome]


@pytest.mark.parametrize(
    ("mode", "read"), [(DUPLEX, True), ("BUFFERED", True), (STREAMED, False), ("NONE", False)]
)
def test_an_answer_that_comes_anyway_is_read_and_nothing_waits_for_it(
    director: Any, messages: Any, mode: str, read: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def ask(settings: ExchangeSettings) -> list[Any]:
        exchange = DecodedExchange(director, settings)
        asked(exchange, messages, response_mode=mode)
        done = [
            exchange.ask(messages.response_headers(values=JSON), 5),
            exchange.may_end,
            exchange.ends_early,
        ]
        return [*done, exchange.ask(messages.response_body(b"abc", end_of_stream=True), 6), exchange.may_end]

    seen = list[bytes]()
    assert ask(ExchangeSettings(passing_readers=(lambda *_: Watcher(seen),))) == ask(ExchangeSettings())
    assert seen == ([b"abc", b"end"] if read else [])
    assert not caplog.records


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_mutated_requests_and_answers_change_in_their_model_only(seed: int) -> None:
    """The long run is `python -m benchmarks.fuzz_rewriting`."""
    fuzz = fuzz_rewriting.run(5_000, seed)
    assert min(fuzz.outcomes["refused"], fuzz.outcomes["rewritten"], fuzz.outcomes["unchanged"]) > 500
