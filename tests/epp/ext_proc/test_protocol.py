import json
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st

from epp.ext_proc import answers, protocol
from epp.ext_proc.exchange_settings import ExchangeSettings, ProtocolVersion
from epp.request.body import LARGE_PIECE
from epp.request.control_headers import DATA_PLANE_ONLY, DESTINATION, SUBSET
from epp.request.rejection import Rejection, UnreadableError
from epp.wire.messages.ext_proc_pb2 import (
    HeaderMap,
    HeaderValue,
    HeaderValueOption,
    Metadata,
    ProcessingResponse,
)
from tests.decoded_exchange import DecodedExchange, read

HINT = protocol.SUBSET_NAMESPACE


@pytest.mark.parametrize(
    ("value", "allowed"),
    [
        (["10.0.0.1:8000"], True),
        (["10.0.0.1:8001"], False),
        (["10.0.0.1"], True),
        ("10.0.0.1:8000", True),
        ("10.0.0.9:1, 10.0.0.1:8000", True),
        (["10.0.0.9:1,10.0.0.1:8000"], True),
        ([7, None, "10.0.0.1:8000"], True),
        (["10.0.0.1:http"], False),
        (["10.0.0.1:"], False),
        pytest.param(["10.0.0.1:" + "9" * 5000], False, id="a long port"),
        (["::ffff:10.0.0.1"], True),
        ([], False),
        ("", False),
        ([""], False),
        (7, False),
    ],
)
def test_subset_of_an_ipv4_endpoint(context: Any, value: Any, allowed: bool) -> None:
    subset = protocol.parse_subset(context(HINT, {SUBSET: value}))
    assert subset is not None
    assert subset.allows("10.0.0.1", 8000) is allowed


@pytest.mark.parametrize(
    "value",
    ["10.0.0.1," * 16_384, ["10.0.0.1"] * 16_385, [None] * 16_385, ["1,2"] * 8193, "," * 4_000_000],
    ids=["a text", "a list", "of nothing", "of texts", "of commas"],
)
def test_a_hint_without_end_is_not_read(context: Any, value: Any) -> None:
    with pytest.raises(UnreadableError, match="more than 16384 destinations"):
        protocol.parse_subset(context(HINT, {SUBSET: value}))


def test_no_hint_is_no_subset(context: Any) -> None:
    assert protocol.parse_subset(Metadata()) is None
    assert protocol.parse_subset(context(HINT, {"other": "x"})) is None
    assert protocol.parse_subset(context("envoy.lb", {SUBSET: "10.0.0.1"})) is None


@given(
    st.recursive(st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(), st.lists, max_leaves=8)
)
def test_no_hint_breaks_the_parser(value: Any) -> None:
    metadata = Metadata()
    metadata.filter_metadata[HINT].update({SUBSET: value})
    subset = protocol.parse_subset(metadata)
    assert subset is not None
    subset.allows("10.0.0.1", 1)


def test_header_fields_without_end_are_refused() -> None:
    field = HeaderValue(key="a", raw_value=b"b").SerializeToString()
    assert protocol.read_headers(HeaderMap(headers=[field] * 10_000))[0] == {"a": "b"}
    with pytest.raises(Rejection, match="the request has more than 10000 header fields") as caught:
        protocol.read_headers(HeaderMap(headers=[field] * 10_001))
    assert (caught.value.status, caught.value.code) == (431, "request_header_fields_too_large")
    status = HeaderValue(key=":status", raw_value=b"200").SerializeToString()
    assert protocol.read_status(HeaderMap(headers=[*[field] * 9_999, status])) == 200
    assert protocol.read_status(HeaderMap(headers=[*[field] * 10_000, status])) is None


def test_headers_prefer_the_raw_value_and_the_first_of_a_name() -> None:
    headers = [
        HeaderValue(key="X-A", value="text"),
        HeaderValue(key="x-b", value="text", raw_value=b"raw"),
        HeaderValue(key="x-a", value="second"),
        HeaderValue(key="x-c", raw_value=b"\xff"),
    ]
    sent = HeaderMap(headers=[header.SerializeToString() for header in headers])
    assert protocol.read_headers(sent) == ({"x-a": "text", "x-b": "raw", "x-c": "\ufffd"}, ())


@pytest.mark.parametrize(
    ("version", "value", "fallback"),
    [
        (ProtocolVersion.V1_0, "a:1,b:2,c:3", None),
        (ProtocolVersion.V0_3, "a:1", "b:2"),
        (ProtocolVersion.FEBRUARY_2025, "a:1", None),
    ],
)
def test_header_and_metadata_say_the_same(version: ProtocolVersion, value: str, fallback: str | None) -> None:
    common, metadata = protocol.routing(["a:1", "b:2", "c:3"], version, ())
    (option,) = common.header_mutation.set_headers
    assert option.header.key == "x-gateway-destination-endpoint"
    assert option.header.raw_value.decode() == value
    assert option.append_action == HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
    assert common.clear_route_cache
    assert not common.header_mutation.remove_headers
    expected = {"x-gateway-destination-endpoint": value}
    if fallback is not None:
        expected["x-gateway-destination-endpoint-fallback"] = fallback
    assert MessageToDict(metadata) == {"envoy.lb": expected}


def test_what_a_client_sent_under_control_names_is_removed() -> None:
    names = ["X-LLM-D-Any", "x-gateway-any", "x-llm-d-any", "x-slo-ttft-ms", "x-other", DESTINATION]
    headers = HeaderMap(headers=[HeaderValue(key=name, value="x").SerializeToString() for name in names])
    seen, controls = protocol.read_headers(headers)
    assert seen.keys() == {name.lower() for name in names}
    common, _ = protocol.routing(["a:1"], ProtocolVersion.V1_0, controls)
    assert list(common.header_mutation.remove_headers) == ["x-llm-d-any", "x-gateway-any", "x-slo-ttft-ms"]
    assert [option.header.key for option in common.header_mutation.set_headers] == [DESTINATION]


def test_a_rejection_is_an_openai_error() -> None:
    rejection = Rejection(429, "saturated", "come back later", reason="rejected-saturated", retry_after=1.2)
    response = protocol.immediate(rejection).immediate_response
    assert response.status.code == 429
    headers = {o.header.key: o.header.raw_value.decode() for o in response.headers.set_headers}
    assert headers == {
        "content-type": "application/json",
        "retry-after": "2",
        "x-llm-d-request-dropped-reason": "rejected-saturated",
    }
    assert json.loads(response.body) == {
        "error": {
            "message": "come back later",
            "type": "rate_limit_error",
            "param": None,
            "code": "saturated",
        }
    }


@pytest.mark.parametrize(
    ("seconds", "chance", "after"),
    [(1.0, 0.49, 1), (1.0, 0.5, 2), (1.0, 1.0, 2), (2.5, 0.0, 3), (2.5, 0.99, 6)],
)
def test_who_is_refused_comes_back_after_once_to_twice_the_time(
    director: Any, messages: Any, seconds: float, chance: float, after: int
) -> None:
    director.outcome = Rejection(429, "saturated", "later", retry_after=seconds)
    exchange = DecodedExchange(director, ExchangeSettings(chance=lambda: chance))
    (answer,) = exchange.ask(messages.headers({":method": "GET"}, end_of_stream=True), 0)
    said = {o.header.key: o.header.raw_value for o in answer.immediate_response.headers.set_headers}
    assert int(said["retry-after"]) == after


@pytest.mark.parametrize(("seconds", "header"), [(0.0, "1"), (0.4, "1"), (1.0, "1"), (29.01, "30")])
def test_retry_after_is_whole_seconds_and_at_least_one(seconds: float, header: str) -> None:
    response = protocol.immediate(Rejection(429, "c", "m", retry_after=seconds)).immediate_response
    values = {o.header.key: o.header.raw_value.decode() for o in response.headers.set_headers}
    assert values == {"content-type": "application/json", "retry-after": header}


@given(
    size=st.integers(0, 300) | st.integers(0, 62_000),
    closes=st.booleans(),
    kind=st.sampled_from(["request_body", "response_body"]),
)
def test_a_piece_is_what_protobuf_would_write(size: int, closes: bool, kind: answers.BodyKind) -> None:
    expected = ProcessingResponse()
    piece = getattr(expected, kind).response.body_mutation.streamed_response
    piece.SetInParent()
    piece.body = bytes(size)
    piece.end_of_stream = closes
    (found,) = answers.streamed(kind, (bytes(size),), end_of_stream=closes)
    assert answers.to_bytes(found) == expected.SerializeToString()


@given(
    destinations=st.lists(st.from_regex(r"[0-9a-f.:\[\]]{1,60}", fullmatch=True), min_size=2, max_size=9),
    controls=st.sampled_from([(), ("x-gateway-inference-objective",)]),
    kind=st.sampled_from(["request_headers", "request_body"]),
)
def test_the_answer_with_a_list_is_what_protobuf_would_write(
    destinations: list[str], controls: tuple[str, ...], kind: answers.RoutedKind
) -> None:
    listed = tuple(destinations)
    expected = answers.route(listed, ProtocolVersion.V1_0, controls, kind)
    assert answers.route_to_list(listed, controls, kind) == expected


SIZES = st.sampled_from([0, 1, 100, 4096, 5000, 61_999, 62_000, 62_001, 65_536, 65_537, 124_000, 200_000])


@given(st.lists(SIZES, max_size=5), st.booleans())
def test_pieces_of_any_sizes_come_back_in_answers_that_hold_little_more_than_they_say(
    sizes: list[int], closes: bool
) -> None:
    pieces = [bytes((at,)) * size for at, size in enumerate(sizes)]
    found = answers.streamed("request_body", pieces, end_of_stream=closes)
    bodies = [answer.request_body.response.body_mutation.streamed_response for answer in read(found)]
    assert b"".join(body.body for body in bodies) == b"".join(pieces)
    assert [body.end_of_stream for body in bodies] == [False] * (len(bodies) - 1) + [closes]
    assert all(len(body.body) <= answers.CHUNK for body in bodies)
    views = [part for answer in found if isinstance(answer, list) for part in answer]
    held = [part.obj for part in views if isinstance(part, memoryview)]
    assert all(len(whole) <= LARGE_PIECE for whole in held)


def test_a_large_piece_is_not_copied() -> None:
    piece = bytes(65_536)
    found = answers.streamed("request_body", (memoryview(piece), bytes(50_000)), end_of_stream=True)
    views = [part for answer in found if isinstance(answer, list) for part in answer]
    lent = [part for part in views if isinstance(part, memoryview) and part.obj is piece]
    assert [len(part) for part in lent] == [62_000, 3_536]


@pytest.mark.parametrize("version", ProtocolVersion)
@pytest.mark.parametrize("sent", [(), DATA_PLANE_ONLY])
def test_routing_is_that_of_the_protocol(version: ProtocolVersion, sent: tuple[str, ...]) -> None:
    common, metadata = protocol.routing(["a:1", "b:2"], version, sent)
    for kind in ("request_headers", "request_body"):
        (answer,) = read([answers.cached_route(("a:1", "b:2"), version, sent, kind)])
        assert answer.WhichOneof("response") == kind
        assert getattr(answer, kind).response == common
        assert answer.dynamic_metadata == metadata


def test_names_that_a_client_invents_are_not_remembered(picking: Any) -> None:
    answers.cached_route.cache_clear()
    for number in range(100):
        pick, controls = picking("10.0.0.1:80"), (f"x-llm-d-{number}", "x-gateway-inference-objective")
        (answer,) = read([answers.picked(pick, ProtocolVersion.V1_0, controls, "request_headers")])
        removed = answer.request_headers.response.header_mutation.remove_headers
        assert tuple(removed) == controls
    assert answers.cached_route.cache_info().currsize == 0
    answers.picked(pick, ProtocolVersion.V1_0, ("x-gateway-inference-objective",), "request_headers")
    assert answers.cached_route.cache_info().currsize == 1


@pytest.mark.parametrize("kind", ["request_headers", "request_body", "request_trailers", "response_headers"])
def test_go_on_as_it_is(kind: str) -> None:
    (answer,) = read([answers.unchanged(kind)])
    expected = ProcessingResponse()
    getattr(expected, kind).SetInParent()
    assert answer == expected


@pytest.mark.parametrize("kept", [False, True])
def test_headers_for_the_client_come_beside_what_else_changes(kept: bool) -> None:
    answered = answers.unchanged("response_headers") if kept else answers.without_length("response_headers")
    (answer,) = read([answers.with_response_headers(answered, {"x-session-token": "bnMvZTE="})])
    changes = answer.response_headers.response.header_mutation
    assert [(one.header.key, one.header.raw_value) for one in changes.set_headers] == [
        ("x-session-token", b"bnMvZTE=")
    ]
    assert list(changes.remove_headers) == ([] if kept else ["content-length"])
