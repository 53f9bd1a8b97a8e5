"""All unfinished bodies together, within one budget."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.ext_proc.exchange_settings import ExchangeSettings
from epp.request.body import Body, MemoryBudget
from epp.request.rejection import Rejection
from tests.decoded_exchange import DecodedExchange, read


def test_a_body_beyond_its_own_limit_holds_nothing() -> None:
    budget = MemoryBudget(100)
    body = Body(5, budget)
    body.add(b"123")
    with pytest.raises(Rejection) as caught:
        body.add(b"456")
    assert (caught.value.status, budget.held, body.joined()) == (413, 0, b"")


def test_a_piece_beyond_the_budget_is_refused_for_now() -> None:
    budget = MemoryBudget(10)
    Body(10, budget).add(b"12345678")
    with pytest.raises(Rejection) as caught:
        Body(10, budget).add(b"123")
    rejection = caught.value
    assert (rejection.status, rejection.reason) == (503, "rejected-too-many-bytes")
    assert rejection.retry_after
    assert budget.held == 8


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["add", "detach", "discard"]), st.binary()), max_size=40
    )
)
def test_whatever_happens_the_budget_is_kept_and_given_back(steps: list[tuple[int, str, bytes]]) -> None:
    budget = MemoryBudget(50)
    bodies = [Body(40, budget) for _ in range(4)]
    for index, step, piece in steps:
        try:
            bodies[index].add(piece) if step == "add" else getattr(bodies[index], step)()
        except Rejection:
            bodies[index].discard()
        assert 0 <= budget.held <= 50
    for body in bodies:
        body.discard()
    assert budget.held == 0


def begun(
    director: Any, messages: Any, budget: MemoryBudget, body: bytes
) -> tuple[DecodedExchange, list[Any]]:
    """An exchange, and what it says when nobody asks it."""
    exchange, said = DecodedExchange(director, ExchangeSettings(max_body_bytes=100), budget=budget), []
    exchange.on_answer(lambda answers: said.extend(read(answers)), said.append)
    exchange.ask(messages.headers(), 0)
    assert exchange.ask(messages.body(body, end_of_stream=False), 0) == []
    return exchange, said


def test_many_unfinished_bodies_are_bounded_together(director: Any, messages: Any) -> None:
    budget = MemoryBudget(250)
    exchanges = [begun(director, messages, budget, bytes(100)) for _ in range(4)]
    assert [len(said) for _, said in exchanges] == [1, 1, 0, 0]
    refused = exchanges[0][1][0].immediate_response
    assert refused.status.code == 503
    headers = {option.header.key: option.header.raw_value for option in refused.headers.set_headers}
    assert headers["retry-after"] in (b"1", b"2")
    assert headers["x-llm-d-request-dropped-reason"] == b"rejected-too-many-bytes"
    assert budget.held == 200
    exchanges[2][0].close("reset", 1)
    assert budget.held == 100
    assert begun(director, messages, budget, bytes(100))[1] == []


@pytest.mark.parametrize("ending", ["sent", "close"])
def test_a_body_counts_until_it_is_written_back(director: Any, messages: Any, ending: str) -> None:
    budget = MemoryBudget(250)
    exchange, _ = begun(director, messages, budget, bytes(100))
    exchange.sent()
    exchange.ask(messages.body(b"", end_of_stream=True), 0)
    assert budget.held == 100
    exchange.sent() if ending == "sent" else exchange.close("reset", 1)
    assert budget.held == 0
    exchange.close("again", 2)
    assert budget.held == 0


def test_a_rejected_request_holds_nothing(director: Any, messages: Any) -> None:
    director.outcome = Rejection(404, "model_not_found", "no")
    budget = MemoryBudget(250)
    exchange, _ = begun(director, messages, budget, bytes(100))
    exchange.ask(messages.body(b"", end_of_stream=True), 0)
    assert budget.held == 0


@pytest.mark.parametrize(
    ("sizes", "held"), [([5000, 60_000], 2), ([9000, 1], 2), ([1, 5000], 1), ([65_537, 9000], 1)]
)
def test_pieces_that_would_be_copied_again_are_held_joined(sizes: list[int], held: int) -> None:
    body = Body(10**6, MemoryBudget(10**6))
    for size in sizes:
        body.add(bytes(size))
    assert len(body.joined()) == sum(sizes)
    assert len(body.detach()) == held


def test_an_empty_piece_makes_no_copy_of_the_body() -> None:
    body, piece = Body(5, MemoryBudget(100)), b"1234"
    for one in (b"", piece, b""):
        body.add(one)
    assert body.joined() is piece
