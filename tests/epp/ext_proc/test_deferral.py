"""A director that answers later, as an admission queue will."""

from collections.abc import Callable
from typing import Any

import pytest

from epp.ext_proc.exchange import ExchangeError
from epp.ext_proc.exchange_settings import ExchangeSettings
from epp.request.rejection import Rejection
from epp.scheduling.pick import Pick
from epp.wire.messages.ext_proc_pb2 import ProcessingResponse
from tests.decoded_exchange import DecodedExchange, read

NONE_READY = Rejection(503, "no_endpoints", "no endpoint is ready", reason="rejected-no-endpoints")


class Later:
    """A deferral that the test settles."""

    settle: Callable[[Pick | Exception, float], None]
    abandoned = False

    def subscribe(self, settle: Callable[[Pick | Exception, float], None]) -> None:
        self.settle = settle

    def abandon(self, now: float) -> None:
        self.abandoned = True


class Deferred:
    """An exchange whose pick waits, and what it said since."""

    def __init__(self, director: Any, messages: Any) -> None:
        self.later = director.outcome = Later()
        self.answers: list[ProcessingResponse] = []
        self.errors: list[ExchangeError] = []
        self.exchange = DecodedExchange(director, ExchangeSettings())
        self.exchange.on_answer(lambda answers: self.answers.extend(read(answers)), self.errors.append)
        self.exchange.ask(messages.headers(), 0)
        assert self.exchange.ask(messages.body(b"abc", end_of_stream=True), 0) == []


@pytest.fixture
def deferred(director: Any, messages: Any) -> Deferred:
    return Deferred(director, messages)


def test_a_deferred_pick_answers_later(deferred: Deferred, director: Any, picking: Any) -> None:
    chosen = picking("10.0.0.5:8000")
    deferred.later.settle(chosen, 5)
    headers, body = deferred.answers
    (option,) = headers.request_headers.response.header_mutation.set_headers
    assert option.header.raw_value == b"10.0.0.5:8000"
    assert body.request_body.response.body_mutation.streamed_response.body == b"abc"
    deferred.exchange.close("end", 6)
    assert director.released == [chosen]


def test_a_body_that_waits_is_held_once(director: Any, messages: Any, picking: Any) -> None:
    """The director may keep what it was shown, so the exchange holds that, not the pieces that it came in."""
    shown: list[Any] = []
    later = Later()
    director.outcome = lambda headers, body: shown.append(body) or later
    said: list[Any] = []
    exchange = DecodedExchange(director, ExchangeSettings())
    exchange.on_answer(said.extend, said.append)
    exchange.ask(messages.headers(), 0)
    exchange.ask(messages.body(bytes(20_000), end_of_stream=False), 0)
    exchange.ask(messages.body(bytes(20_000), end_of_stream=True), 0)
    later.settle(picking("10.0.0.5:8000"), 5)
    _, (_, body, _) = said
    assert body.obj is shown[0]
    assert len(body) == 40_000


def test_a_deferred_rejection_answers_later(deferred: Deferred) -> None:
    deferred.later.settle(NONE_READY, 5)
    assert [answer.immediate_response.status.code for answer in deferred.answers] == [503]


def test_a_deferred_fault_is_an_exchange_error(deferred: Deferred) -> None:
    deferred.later.settle(ZeroDivisionError(), 5)
    assert [str(error) for error in deferred.errors] == ["the director failed: ZeroDivisionError"]


def test_closing_abandons_a_deferred_pick(deferred: Deferred, director: Any, picking: Any) -> None:
    deferred.exchange.close("reset", 1)
    assert deferred.later.abandoned
    deferred.later.settle(picking("10.0.0.5:8000"), 2)  # a director that settles all the same leaks nothing
    assert len(director.released) == 1
    assert deferred.answers == []


def test_a_deferred_pick_needs_a_listener(director: Any, messages: Any) -> None:
    director.outcome = Later()
    exchange = DecodedExchange(director, ExchangeSettings())
    with pytest.raises(ExchangeError, match="on_answer"):
        exchange.ask(messages.headers(end_of_stream=True), 0)


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("pieces", [[b""], [b"abc", b"", b"def"]])
def test_a_tunnel_waits_for_the_answer_to_its_headers(
    director: Any, messages: Any, picking: Any, pieces: list[bytes], ended: bool
) -> None:
    waiting = Deferred(director, messages)
    exchange = waiting.exchange = DecodedExchange(director, ExchangeSettings())
    exchange.on_answer(lambda answers: waiting.answers.extend(read(answers)), waiting.errors.append)
    assert exchange.ask(messages.headers({"upgrade": "websocket"}), 0) == []
    for number, piece in enumerate(pieces, 1):
        end = ended and number == len(pieces)
        assert exchange.ask(messages.body(piece, end_of_stream=end), 0) == []
    waiting.later.settle(picking("10.0.0.5:8000"), 5)
    headers, *bodies = waiting.answers
    assert headers.HasField("request_headers")
    passed = [answer.request_body.response.body_mutation.streamed_response for answer in bodies]
    assert b"".join(piece.body for piece in passed) == b"".join(pieces)
    assert [piece.end_of_stream for piece in passed][-1] is ended
    if not ended:
        (later,) = exchange.ask(messages.body(b"more", end_of_stream=False), 6)
        assert later.request_body.response.body_mutation.streamed_response.body == b"more"


@pytest.mark.parametrize("pieces", [[], [b"abc"]])
def test_trailers_of_a_tunnel_wait_for_the_answer_to_its_headers(
    director: Any, messages: Any, picking: Any, pieces: list[bytes]
) -> None:
    director.outcome = later = Later()
    said: list[ProcessingResponse] = []
    exchange = DecodedExchange(director, ExchangeSettings())
    exchange.on_answer(lambda answers: said.extend(read(answers)), lambda error: None)
    exchange.ask(messages.headers({"upgrade": "websocket"}), 0)
    for piece in pieces:
        assert exchange.ask(messages.body(piece, end_of_stream=False), 0) == []
    assert exchange.ask(messages.trailers(), 0) == []
    later.settle(picking("10.0.0.5:8000"), 5)
    kinds = [answer.WhichOneof("response") for answer in said]
    assert kinds == ["request_headers", *["request_body"] * len(pieces), "request_trailers"]


def test_what_the_data_plane_answers_itself_is_picked_for_no_more(
    deferred: Deferred, director: Any, messages: Any, picking: Any
) -> None:
    kinds = [
        answer.WhichOneof("response") for answer in deferred.exchange.ask(messages.response_headers("504"), 5)
    ]
    assert kinds == ["response_headers"]
    assert deferred.later.abandoned
    chosen = picking("10.0.0.5:8000")
    deferred.later.settle(chosen, 6)  # a director that settles all the same
    assert deferred.answers == []
    assert director.released == [chosen]


def test_an_answer_that_fails_ends_its_own_stream_only(director: Any, messages: Any, picking: Any) -> None:
    """Who settles answers many: a fault must not reach it."""

    class Failing:
        def picked(self, pick: Pick, now: float) -> None:
            raise ZeroDivisionError

        def released(self, pick: Pick, started: float, now: float) -> None: ...

    director.outcome = later = Later()
    errors: list[ExchangeError] = []
    exchange = DecodedExchange(director, ExchangeSettings(), Failing())
    exchange.on_answer(lambda answers: None, errors.append)
    exchange.ask(messages.headers(end_of_stream=True), 0)
    chosen = picking("10.0.0.5:8000")
    later.settle(chosen, 5)
    assert [type(error.__cause__) for error in errors] == [ZeroDivisionError]
    exchange.close("fault", 6)
    assert director.released == [chosen]
