"""CONNECT and upgrades: what follows the headers is no body, and never ends."""

from typing import Any

import pytest

from epp.ext_proc.exchange_settings import ExchangeSettings
from epp.request.control_headers import DESTINATION
from epp.wire.messages.ext_proc_pb2 import ProcessingResponse
from tests.decoded_exchange import DecodedExchange


def destination(answer: ProcessingResponse) -> str:
    (option,) = answer.request_headers.response.header_mutation.set_headers
    assert option.header.key == DESTINATION
    value: str = option.header.raw_value.decode()
    return value


def streamed(answers: list[ProcessingResponse]) -> list[tuple[bytes, bool]]:
    pieces = [answer.request_body.response.body_mutation.streamed_response for answer in answers]
    return [(piece.body, piece.end_of_stream) for piece in pieces]


@pytest.fixture
def exchange(director: Any) -> DecodedExchange:
    return DecodedExchange(director, ExchangeSettings())


UPGRADES = [
    {":method": "CONNECT"},
    {":method": "GET", "upgrade": "websocket", "content-length": "99999999999"},
]


@pytest.mark.parametrize("headers", UPGRADES, ids=["connect", "upgrade"])
def test_a_tunnel_is_answered_at_once_and_passes(
    exchange: DecodedExchange, director: Any, messages: Any, headers: dict[str, str]
) -> None:
    (answer,) = exchange.ask(messages.headers(headers), 0)
    assert destination(answer) == "10.0.0.1:8000"
    assert director.directed[0][1] is None
    for piece in (b"abc", b"", bytes(70_000)):
        answers = exchange.ask(messages.body(piece, end_of_stream=False), 0)
        assert b"".join(body for body, _ in streamed(answers)) == piece
        assert not any(ended for _, ended in streamed(answers))
    (answer,) = exchange.ask(messages.response_headers("101"), 0)
    assert answer.WhichOneof("response") == "response_headers"
    assert streamed(exchange.ask(messages.body(b"later", end_of_stream=True), 0)) == [(b"later", True)]


@pytest.mark.parametrize("mode", ["BUFFERED", "BUFFERED_PARTIAL", "STREAMED", "NONE"])
def test_a_tunnel_is_answered_at_once_in_every_mode(
    exchange: DecodedExchange, messages: Any, mode: str
) -> None:
    (answer,) = exchange.ask(messages.headers(UPGRADES[1], mode=mode), 0)
    assert destination(answer) == "10.0.0.1:8000"
    (answer,) = exchange.ask(messages.body(b"abc", end_of_stream=False), 0)
    assert answer.WhichOneof("response") == "request_body"
    assert not answer.request_body.response.HasField("body_mutation")
