"""CONNECT and upgrades: what follows the headers is no body, and never ends."""

from typing import Any

import pytest

from epp.ext_proc.exchange_settings import ExchangeSettings
from tests.decoded_exchange import DecodedExchange
from tests.epp.ext_proc.test_exchange import destination, streamed


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
