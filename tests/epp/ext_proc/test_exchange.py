"""Exchanges message by message; and a random conversation, which never leaves the arrows of the diagram of states."""

from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epp.ext_proc.exchange import ExchangeError
from epp.ext_proc.exchange_settings import ExchangeSettings, ProtocolVersion
from epp.ext_proc.exchange_state import ExchangeState as State
from epp.ext_proc.protocol import SUBSET_NAMESPACE
from epp.request.control_headers import DESTINATION, SERVED, SUBSET
from epp.request.rejection import OwnAnswer, Rejection, UnreadableError
from epp.scheduling.pick import Pick
from epp.wire.messages.ext_proc_pb2 import ProcessingMode, ProcessingRequest, ProcessingResponse
from tests.decoded_exchange import DecodedExchange, read
from tests.epp.ext_proc.test_deferral import Later

NONE_READY = Rejection(503, "no_endpoints", "no endpoint is ready", reason="rejected-no-endpoints")


def kinds(answers: list[ProcessingResponse]) -> list[str | None]:
    return [answer.WhichOneof("response") for answer in answers]


def lb(answer: ProcessingResponse) -> dict[str, str]:
    found: dict[str, str] = MessageToDict(answer.dynamic_metadata)["envoy.lb"]
    return found


def destination(answer: ProcessingResponse) -> str:
    """Header and metadata of a routed answer, which must be equal."""
    common = getattr(answer, answer.WhichOneof("response") or "").response
    (option,) = common.header_mutation.set_headers
    value: str = option.header.raw_value.decode()
    assert lb(answer)[DESTINATION] == value
    return value


def streamed(answers: list[ProcessingResponse]) -> list[tuple[bytes, bool]]:
    pieces = [answer.request_body.response.body_mutation.streamed_response for answer in answers]
    return [(piece.body, piece.end_of_stream) for piece in pieces]


@pytest.fixture
def exchange(director: Any) -> DecodedExchange:
    return DecodedExchange(director, ExchangeSettings())


@pytest.mark.parametrize("mode", ["FULL_DUPLEX_STREAMED", None])
def test_full_duplex_collects_then_answers_headers_and_body(
    exchange: DecodedExchange, director: Any, messages: Any, mode: str | None
) -> None:
    """Also for a data plane that names no mode."""
    assert exchange.ask(messages.headers(mode=mode), 0) == []
    assert exchange.ask(messages.body(b'{"model"', end_of_stream=False), 0) == []
    assert exchange.ask(messages.body(b':"m"}', end_of_stream=False), 0) == []
    answers = exchange.ask(messages.body(b"", end_of_stream=True), 0)
    assert kinds(answers) == ["request_headers", "request_body"]
    assert destination(answers[0]) == "10.0.0.1:8000"
    assert streamed(answers[1:]) == [(b'{"model":"m"}', True)]
    ((headers, body, subset),) = director.directed
    assert (headers[":path"], body, subset) == ("/v1/completions", b'{"model":"m"}', None)


def test_a_body_closed_by_trailers(exchange: DecodedExchange, messages: Any) -> None:
    exchange.ask(messages.headers(), 0)
    exchange.ask(messages.body(b"abc", end_of_stream=False), 0)
    answers = exchange.ask(messages.trailers(), 0)
    assert kinds(answers) == ["request_headers", "request_body", "request_trailers"]
    assert streamed(answers[1:2]) == [(b"abc", False)]


@pytest.mark.parametrize("mode", ["FULL_DUPLEX_STREAMED", "BUFFERED", "STREAMED", "NONE", None])
def test_headers_only(exchange: DecodedExchange, director: Any, messages: Any, mode: str | None) -> None:
    answers = exchange.ask(messages.headers({":method": "GET"}, end_of_stream=True, mode=mode), 0)
    assert kinds(answers) == ["request_headers"]
    assert destination(answers[0]) == "10.0.0.1:8000"
    assert director.directed[0][1] == b""


@pytest.mark.parametrize("mode", ["BUFFERED", "BUFFERED_PARTIAL"])
@pytest.mark.parametrize("trailers", [False, True])
def test_buffered(exchange: DecodedExchange, director: Any, messages: Any, mode: str, trailers: bool) -> None:
    first = exchange.ask(messages.headers(mode=mode), 0)
    assert kinds(first) == ["request_headers"]
    assert not first[0].request_headers.response.header_mutation.set_headers
    (answer,) = exchange.ask(messages.body(b"abc", end_of_stream=not trailers), 0)
    assert destination(answer) == "10.0.0.1:8000"
    assert not answer.request_body.response.HasField("body_mutation")
    # a body that goes on elsewhere may be a part of one, which means nothing
    assert director.directed[0][1] == (None if mode == "BUFFERED_PARTIAL" and trailers else b"abc")
    if trailers:
        assert kinds(exchange.ask(messages.trailers(), 0)) == ["request_trailers"]


@pytest.mark.parametrize("mode", ["STREAMED", "NONE"])
def test_streamed_picks_on_the_headers_and_lets_the_body_pass(
    exchange: DecodedExchange, director: Any, messages: Any, mode: str
) -> None:
    (answer,) = exchange.ask(messages.headers(mode=mode), 0)
    assert destination(answer) == "10.0.0.1:8000"
    assert director.directed[0][1] is None, "a body that is not shown is not an empty one"
    for last in (False, True):
        (answer,) = exchange.ask(messages.body(b"abc", end_of_stream=last), 0)
        assert answer.WhichOneof("response") == "request_body"
        assert not answer.request_body.response.HasField("body_mutation")


@pytest.mark.parametrize("place", ["headers", "body", "both"])
def test_the_subset_comes_with_headers_or_body_and_the_last_wins(
    exchange: DecodedExchange, director: Any, messages: Any, context: Any, place: str
) -> None:
    here = context(SUBSET_NAMESPACE, {SUBSET: ["10.0.0.1:8000"]})
    other = context(SUBSET_NAMESPACE, {SUBSET: ["10.0.0.9:8000"]})
    first = {"headers": here, "body": None, "both": other}[place]
    exchange.ask(messages.headers(context=first), 0)
    exchange.ask(messages.body(b"a", end_of_stream=True, context=None if place == "headers" else here), 0)
    subset = director.directed[0][2]
    assert subset.allows("10.0.0.1", 8000)
    assert not subset.allows("10.0.0.9", 8000)


@pytest.mark.parametrize(
    "how", [ExchangeSettings(use_subset_hint=False), ExchangeSettings(ProtocolVersion.FEBRUARY_2025)]
)
def test_a_subset_that_is_not_heeded(director: Any, messages: Any, context: Any, how: Any) -> None:
    exchange = DecodedExchange(director, how)
    exchange.ask(messages.headers(context=context(SUBSET_NAMESPACE, {SUBSET: []}), end_of_stream=True), 0)
    assert director.directed[0][2] is None


@pytest.mark.parametrize("mode", ["FULL_DUPLEX_STREAMED", "BUFFERED"])
def test_scores_are_told_beside_the_pick(
    exchange: DecodedExchange, director: Any, messages: Any, mode: str
) -> None:
    scores = {"10.0.0.1:8000": 2.5, "[fd00::1]:8000": 0.0}
    director.outcome.scores = scores
    exchange.ask(messages.headers(mode=mode), 0)
    answer, *_ = exchange.ask(messages.body(b"{}", end_of_stream=True), 0)
    assert MessageToDict(answer.dynamic_metadata)["envoy.lb"] == {
        DESTINATION: director.outcome.endpoints[0].destination,
        "x-gateway-destination-endpoint-scores": scores,
    }


def test_fallbacks_by_version(director: Any, messages: Any, picking: Any) -> None:
    director.outcome = picking("10.0.0.1:1", "10.0.0.2:2", "10.0.0.3:3")
    found = {}
    for version in ProtocolVersion:
        (answer,) = DecodedExchange(director, ExchangeSettings(version)).ask(
            messages.headers(end_of_stream=True), 0
        )
        found[version] = (destination(answer), lb(answer).get(f"{DESTINATION}-fallback"))
    assert found == {
        ProtocolVersion.V1_0: ("10.0.0.1:1,10.0.0.2:2,10.0.0.3:3", None),
        ProtocolVersion.V0_3: ("10.0.0.1:1", "10.0.0.2:2"),
        ProtocolVersion.FEBRUARY_2025: ("10.0.0.1:1", None),
    }


def test_a_rejection_is_the_last_word(exchange: DecodedExchange, director: Any, messages: Any) -> None:
    director.outcome = NONE_READY
    exchange.ask(messages.headers(), 0)
    (answer,) = exchange.ask(messages.body(b"a", end_of_stream=True), 0)
    assert answer.immediate_response.status.code == 503
    assert exchange.ask(messages.trailers(), 0) == []
    assert exchange.ask(messages.response_headers("503"), 0) == []
    exchange.close("end", 1)
    assert director.released == []


@pytest.mark.parametrize(
    ("sent", "told"),
    [("r-1", "r-1"), ("x" * 5_000, "x" * 200), ("a\tb", None), ("caf\xe9", None), (None, None)],
)
@pytest.mark.parametrize("outcome", [NONE_READY, OwnAnswer(b"{}")], ids=["refused", "own answer"])
def test_what_the_picker_answers_itself_tells_the_id_of_the_request(
    director: Any, messages: Any, outcome: Any, sent: str | None, told: str | None
) -> None:
    director.outcome = outcome
    headers = {} if sent is None else {"x-request-id": sent}
    (answer,) = DecodedExchange(director, ExchangeSettings()).ask(
        messages.headers(headers, end_of_stream=True), 0
    )
    said = {o.header.key: o.header.raw_value.decode() for o in answer.immediate_response.headers.set_headers}
    assert said.get("x-request-id") == told


@pytest.mark.parametrize("length", ["11", "nonsense", "9" * 5000, "0" * 5000 + "11"])
def test_a_body_over_the_limit_is_413(director: Any, messages: Any, length: str) -> None:
    exchange = DecodedExchange(director, ExchangeSettings(max_body_bytes=10))
    answers = exchange.ask(messages.headers({"content-length": length}), 0)
    assert bool(answers) is (length != "nonsense")
    answers += exchange.ask(messages.body(b"123456", end_of_stream=False), 0)
    answers += exchange.ask(messages.body(b"78901", end_of_stream=True), 0)
    assert [answer.immediate_response.status.code for answer in answers] == [413]
    assert director.directed == []


def test_a_body_at_the_limit_passes(director: Any, messages: Any) -> None:
    exchange = DecodedExchange(director, ExchangeSettings(max_body_bytes=10))
    exchange.ask(messages.headers({"content-length": "10"}), 0)
    assert kinds(exchange.ask(messages.body(b"1234567890", end_of_stream=True), 0))[0] == "request_headers"


def test_a_fault_of_the_director_is_an_exchange_error(
    exchange: DecodedExchange, director: Any, messages: Any
) -> None:
    director.outcome = ZeroDivisionError("secret")
    with pytest.raises(ExchangeError, match="^the director failed: ZeroDivisionError$") as caught:
        exchange.ask(messages.headers(end_of_stream=True), 0)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_served_and_status_are_reported(director: Any, messages: Any, context: Any) -> None:
    observed: list[Any] = []
    exchange = DecodedExchange(director, ExchangeSettings(), Recorder(observed))
    exchange.ask(messages.headers(end_of_stream=True), 1)
    served = context("envoy.lb", {SERVED: "10.0.0.2:8000"})
    assert kinds(exchange.ask(messages.response_headers("502", served), 2)) == ["response_headers"]
    assert exchange.responded
    assert director.reported == ["10.0.0.2:8000"]
    assert director.statuses == [502]
    exchange.close("end", 3)
    assert observed == [("picked", 1), ("responded", 502, 2), ("released", 1, 3)]


def test_a_sheddable_request_is_taken_back_until_its_answer_begins(director: Any, messages: Any) -> None:
    observed: list[Any] = []
    said: list[Any] = []
    DecodedExchange(director, ExchangeSettings()).ask(messages.headers(end_of_stream=True), 1)
    assert director.outcome.evict is None, "it is not sheddable"
    director.outcome.request.priority = -1
    for begins in (False, True):
        exchange = DecodedExchange(director, ExchangeSettings(), Recorder(observed))
        exchange.on_answer(lambda answers: said.extend(read(answers)), lambda _: None)
        exchange.ask(messages.headers(end_of_stream=True), 1)
        evict = director.outcome.evict
        if begins:
            exchange.ask(messages.response_headers(), 2)
        refusal = Rejection(429, "saturated", "taken back", reason="evicted-priority")
        assert evict(refusal, 3) is not begins
        assert evict(refusal, 3) is False, "once"
        exchange.close("end", 4)
        assert director.outcome.evict is None
    assert [answer.immediate_response.status.code for answer in said] == [429]
    assert observed == [
        *[("picked", 1), ("evicted", 429, 3), ("released", 1, 4)],
        *[("picked", 1), ("responded", 200, 2), ("released", 1, 4)],
    ]


class Recorder:
    """An observer that keeps a list."""

    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen

    def picked(self, pick: Pick, now: float) -> None:
        self.seen.append(("picked", now))

    def evicted(self, pick: Pick, rejection: Rejection, now: float) -> None:
        self.seen.append(("evicted", rejection.status, now))

    def rejected(self, rejection: Rejection, now: float) -> None:
        self.seen.append(("rejected", rejection.status, now))

    def responded(self, pick: Pick, status: int, now: float) -> None:
        self.seen.append(("responded", status, now))

    def not_renamed(self) -> None:
        self.seen.append("not renamed")

    def released(self, pick: Pick, started: float, now: float) -> None:
        self.seen.append(("released", started, now))


@pytest.mark.parametrize("status", ["9" * 5000, "", "2000", "abc", "\u0661\u0661\u0661"])
def test_a_status_that_is_none_is_not_counted(director: Any, messages: Any, status: str) -> None:
    observed: list[Any] = []
    exchange = DecodedExchange(director, ExchangeSettings(), Recorder(observed))
    exchange.ask(messages.headers(end_of_stream=True), 1)
    assert kinds(exchange.ask(messages.response_headers(status), 2)) == ["response_headers"]
    assert observed == [("picked", 1)]
    assert director.statuses == []


def test_closing_releases_once(exchange: DecodedExchange, director: Any, messages: Any) -> None:
    exchange.ask(messages.headers(end_of_stream=True), 0)
    exchange.close("reset", 1)
    exchange.close("end", 2)
    assert director.released == [director.outcome]
    assert exchange.closed_by == "reset"
    assert exchange.ask(messages.response_headers(), 3) == []


def test_closing_before_the_pick_releases_nothing(
    exchange: DecodedExchange, director: Any, messages: Any
) -> None:
    exchange.ask(messages.headers(), 0)
    exchange.close("reset", 1)
    assert director.released == []


def test_response_bodies_are_echoed_when_envoy_sends_them(exchange: DecodedExchange, messages: Any) -> None:
    exchange.ask(messages.headers(end_of_stream=True, response_mode="FULL_DUPLEX_STREAMED"), 0)
    exchange.ask(messages.response_headers(), 0)
    (answer,) = exchange.ask(messages.response_body(b"data: x", end_of_stream=False), 0)
    piece = answer.response_body.response.body_mutation.streamed_response
    assert (piece.body, piece.end_of_stream) == (b"data: x", False)
    trailers = ProcessingRequest()
    trailers.response_trailers.SetInParent()
    assert kinds(exchange.ask(trailers, 0)) == ["response_trailers"]


@pytest.mark.parametrize("mode", ["STREAMED", "BUFFERED"])
def test_other_response_bodies_pass_unchanged(exchange: DecodedExchange, messages: Any, mode: str) -> None:
    exchange.ask(messages.headers(end_of_stream=True, response_mode=mode), 0)
    exchange.ask(messages.response_headers(), 0)
    (answer,) = exchange.ask(messages.response_body(b"data: x", end_of_stream=True), 0)
    assert answer.WhichOneof("response") == "response_body"
    assert not answer.response_body.response.HasField("body_mutation")


def test_a_response_without_a_request_is_let_through(
    exchange: DecodedExchange, director: Any, messages: Any
) -> None:
    assert kinds(exchange.ask(messages.response_headers("401"), 0)) == ["response_headers"]
    exchange.close("end", 1)
    assert director.released == []


def test_messages_out_of_order_are_errors(director: Any, messages: Any) -> None:
    with pytest.raises(ExchangeError, match="request_header_mode"):
        DecodedExchange(director, ExchangeSettings()).ask(messages.body(b"a", end_of_stream=True), 0)
    exchange = DecodedExchange(director, ExchangeSettings())
    exchange.ask(messages.headers(), 0)
    with pytest.raises(ExchangeError, match="twice"):
        exchange.ask(messages.headers(), 0)
    with pytest.raises(ExchangeError, match="of an unknown kind"):
        DecodedExchange(director, ExchangeSettings()).ask(ProcessingRequest(), 0)
    broken = messages.headers()
    broken.request_headers.headers.headers.append(b"\x0a\x01\xff")  # a name that is not UTF-8
    with pytest.raises(UnreadableError, match="a header that cannot be read"):
        DecodedExchange(director, ExchangeSettings()).ask(broken, 0)


def test_observability_mode_wants_no_answers(exchange: DecodedExchange, director: Any, messages: Any) -> None:
    message = messages.headers(end_of_stream=True)
    message.observability_mode = True
    assert exchange.ask(message, 0) == []
    assert director.directed == []


# both hold no state
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=50)
@given(st.lists(st.integers(0, 70_000).map(bytes) | st.binary(), max_size=4), st.booleans())
def test_any_cut_of_a_body_comes_out_byte_for_byte(
    director: Any, messages: Any, pieces: list[bytes], trailers: bool
) -> None:
    exchange = DecodedExchange(director, ExchangeSettings())
    exchange.ask(messages.headers(), 0)
    for piece in pieces:
        assert exchange.ask(messages.body(piece, end_of_stream=False), 0) == []
    last = messages.trailers() if trailers else messages.body(b"", end_of_stream=True)
    answers = exchange.ask(last, 0)
    bodies = [answer for answer in answers if answer.WhichOneof("response") == "request_body"]
    assert b"".join(body for body, _ in streamed(bodies)) == b"".join(pieces)
    closing = [closes for _, closes in streamed(bodies)]
    assert not any(closing[:-1])
    assert closing[-1:] == ([True] if not trailers else [False] if any(pieces) else [])


# both hold no state
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.sampled_from(ProcessingMode.BodySendMode.keys()),
    st.sampled_from([{}, {"upgrade": "x"}, {"content-length": "100"}]),
    st.lists(st.tuples(st.sampled_from([0, 1, 9_000]).map(bytes), st.booleans()), max_size=3),
)
def test_a_body_alone_is_answered_as_its_message(
    director: Any, messages: Any, mode: str, headers: dict[str, str], pieces: list[tuple[bytes, bool]]
) -> None:
    alone, within = (DecodedExchange(director, ExchangeSettings(max_body_bytes=10_000)) for _ in range(2))
    for exchange in (alone, within):
        exchange.ask(messages.headers(headers, mode=mode), 0)

    def said(ask: Any) -> Any:
        try:
            return read(ask())
        except ExchangeError as error:
            return str(error)

    for body, ends in pieces:
        message = messages.body(body, end_of_stream=ends)
        lent = memoryview(body)
        assert said(lambda: alone.feed_body(lent, ends, 0)) == said(lambda: within.feed(message, 0))  # noqa: B023


def test_a_stream_may_end_when_no_body_is_on_its_way_back(director: Any, messages: Any) -> None:
    plain, passing, tunnel, trailing, empty = (
        DecodedExchange(director, ExchangeSettings()) for _ in range(5)
    )
    plain.ask(messages.headers(end_of_stream=True), 0)
    assert not plain.may_end
    plain.ask(messages.response_headers(), 0)
    assert plain.may_end
    for exchange in (passing, trailing, empty):
        exchange.ask(messages.headers(end_of_stream=True, response_mode="FULL_DUPLEX_STREAMED"), 0)
        headers = messages.response_headers()
        headers.response_headers.end_of_stream = exchange is empty
        exchange.ask(headers, 0)
    assert [exchange.may_end for exchange in (passing, trailing, empty)] == [False, False, True]
    for end in (False, True):
        message = ProcessingRequest()
        message.response_body.body = b"x"
        message.response_body.end_of_stream = end
        passing.ask(message, 0)
        assert passing.may_end is end
    message = ProcessingRequest()
    message.response_trailers.SetInParent()
    trailing.ask(message, 0)
    assert trailing.may_end
    tunnel.ask(messages.headers({"upgrade": "websocket"}), 0)
    tunnel.ask(messages.response_headers("101"), 0)
    assert not tunnel.may_end
    tunnel.ask(messages.body(b"", end_of_stream=True), 0)
    assert tunnel.may_end


# CONNECT and upgrades: what follows the headers is no body, and never ends
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
