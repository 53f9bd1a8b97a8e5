"""That the states are those of the diagram: a random conversation never leaves its arrows."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epp.ext_proc.exchange import ExchangeError
from epp.ext_proc.exchange_settings import ExchangeSettings
from epp.ext_proc.exchange_state import ExchangeState as State
from epp.request.rejection import Rejection
from epp.wire.messages.ext_proc_pb2 import ProcessingMode, ProcessingRequest
from tests.decoded_exchange import DecodedExchange
from tests.epp.ext_proc.test_deferral import Later

ARROWS = {
    State.HEADERS: {State.COLLECTING, State.WAITING_HEADERS, State.WAITING_OPEN},
    State.COLLECTING: {State.WAITING_BODY, State.WAITING_TRAILERS},
    State.WAITING_OPEN: {
        State.WAITING_PIECES,
        State.WAITING_HEADERS,
        State.WAITING_BODY,
        State.WAITING_TRAILERS,
    }
    | {State.PASSING},
    State.WAITING_PIECES: {State.WAITING_BODY, State.WAITING_TRAILERS, State.PASSING},
    State.WAITING_HEADERS: {State.PICKED},
    State.WAITING_BODY: {State.PICKED},
    State.WAITING_TRAILERS: {State.PICKED},
    State.PASSING: {State.PICKED, State.BOTH_PASS, State.REQUEST_PASSES},
    State.PICKED: set(),
    State.BOTH_PASS: {State.REQUEST_PASSES, State.RESPONSE_PASSES},
    State.REQUEST_PASSES: {State.ANSWERED},
    State.RESPONSE_PASSES: {State.ANSWERED},
    State.ANSWERED: set(),
    State.OVER: set(),
}
RESPONDED = {State.RESPONSE_PASSES, State.ANSWERED}


def reachable(state: State) -> set[State]:
    """By one message, which may take several arrows."""
    found = {state, State.OVER} if state is State.OVER else {state, State.OVER} | RESPONDED
    todo = [state]
    while todo:
        for after in ARROWS[todo.pop()] - found:
            found.add(after)
            todo.append(after)
    return found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.sampled_from(ProcessingMode.BodySendMode.keys()),
    st.sampled_from(ProcessingMode.BodySendMode.keys()),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["pick", "later", "reject"]),
    st.lists(
        st.sampled_from(["piece", "last", "trailers", "settle", "headers", "response piece", "end"]),
        max_size=8,
    ),
)
def test_each_message_takes_arrows_of_the_diagram(
    director: Any,
    messages: Any,
    picking: Any,
    mode: str,
    response: str,
    upgrade: bool,
    ended: bool,
    outcome: str,
    steps: list[str],
) -> None:
    later = Later()
    chosen = picking("10.0.0.1:8000")
    director.outcome = {"pick": chosen, "later": later, "reject": Rejection(429, "c", "m")}[outcome]
    exchange = DecodedExchange(director, ExchangeSettings())
    exchange.on_answer(lambda answers: None, lambda error: None)

    def take(step: str) -> None:
        if step == "settle" and hasattr(later, "settle") and exchange.state.waits:
            later.settle(chosen, 1)
        elif step == "response piece" and exchange.state in (State.BOTH_PASS, State.RESPONSE_PASSES):
            exchange.ask(messages.response_body(b"x", end_of_stream=False), 1)
        elif step == "end":
            trailers = ProcessingRequest()
            trailers.response_trailers.SetInParent()
            exchange.ask(trailers, 1)
        elif step == "headers" and not exchange.state.responded:
            exchange.ask(messages.response_headers(), 1)
        elif step == "trailers":
            exchange.ask(messages.trailers(), 1)
        elif step in ("piece", "last"):
            exchange.ask(messages.body(b"x", end_of_stream=step == "last"), 1)

    before = exchange.state
    assert before is State.HEADERS
    headers = {"upgrade": "websocket"} if upgrade else {}
    exchange.ask(messages.headers(headers, end_of_stream=ended, mode=mode, response_mode=response), 0)
    for step in steps:
        assert exchange.state in reachable(before), (before, exchange.state)
        before = exchange.state
        try:
            take(step)
        except ExchangeError:
            break
    assert exchange.state in reachable(before), (before, exchange.state)
    exchange.close("end", 2)
    assert exchange.state is State.OVER


@pytest.mark.parametrize("state", list(State))
def test_what_a_state_says_of_itself(state: State) -> None:
    assert state.waits is state.name.startswith("WAITING")
    assert state.responded is (state in {State.BOTH_PASS, State.REQUEST_PASSES} | RESPONDED)
    assert state.after_response_piece(last=True).responded is state.responded
    assert state.after_response_headers(body_passes=False).after_request() is State.ANSWERED
