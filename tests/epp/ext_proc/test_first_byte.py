"""When an answer began: by its body where that is seen, else by its headers, or by the data plane's log."""

import pytest

from epp.ext_proc.exchange_settings import ExchangeSettings
from tests.decoded_exchange import DecodedExchange
from tests.epp.conftest import FakeDirector, Message, make_pick
from tests.epp.ext_proc.test_outcomes import Stage, entry


class Awaited:
    seconds = 1.0

    def came(self, at: float, now: float, answered_at: float) -> None: ...

    def ended(self) -> None: ...


def answered(mode: str, *, awaited: bool = True) -> tuple[FakeDirector, DecodedExchange]:
    """The response headers came at 1."""
    pick = make_pick("10.0.0.1:8000")
    pick.request.awaited = Awaited() if awaited else None
    director = FakeDirector(pick)
    exchange = DecodedExchange(director, ExchangeSettings())
    exchange.ask(Message.headers(response_mode=mode), 0)
    exchange.ask(Message.body(b"{}", end_of_stream=True), 0)
    exchange.ask(Message.response_headers(), 1)
    return director, exchange


def test_the_first_piece_of_a_body_is_the_beginning() -> None:
    director, exchange = answered("FULL_DUPLEX_STREAMED")
    assert director.first_bytes == []
    for now in (2, 3):
        exchange.ask(Message.response_body(b"data: x", end_of_stream=False), now)
    assert director.first_bytes == [2]


@pytest.mark.parametrize(("awaited", "told"), [(True, [1]), (False, [])])
def test_without_bodies_the_headers_are(awaited: bool, told: list[float]) -> None:
    director, _ = answered("NONE", awaited=awaited)
    assert director.first_bytes == told


def test_the_log_tells_when_it_came() -> None:
    stage = Stage()
    pick = stage.pick(10.0)
    pick.request.awaited = Awaited()
    stage.hear(entry(pick.token, first_byte=0.5), now=13.0)
    assert stage.director.first_bytes == [10.5]


@pytest.mark.parametrize(
    ("bodies", "came"),
    [
        ((None, None), 0.5),  # no tag, so the headers count
        (("=", "=1500000"), 1.5),
        (("=1500000", "=1600000"), 1.5),
        (("=", "="), None),
        (("=-", "=1e6"), None),
        (("=" + "9" * 14, "=" + "9" * 5000), None),
    ],
)
def test_the_first_byte_of_the_body_counts_where_it_is_told(
    bodies: tuple[str | None, str | None], came: float | None
) -> None:
    stage = Stage()
    pick = stage.pick()
    pick.request.awaited = Awaited()
    stage.hear(entry(pick.token, under_way=True, body=bodies[0]), now=1.9)
    stage.hear(entry(pick.token, body=bodies[1]), now=2.0)
    assert stage.director.statuses == [200]
    assert stage.director.first_bytes[:1] == ([] if came is None else [came])
