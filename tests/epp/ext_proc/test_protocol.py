import json
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st

from epp.ext_proc import protocol
from epp.ext_proc.exchange_settings import ExchangeSettings, ProtocolVersion
from epp.request.control_headers import DESTINATION, SUBSET
from epp.request.rejection import Rejection, UnreadableError
from epp.wire.messages.ext_proc_pb2 import HeaderMap, HeaderValue, HeaderValueOption, Metadata
from tests.decoded_exchange import DecodedExchange

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
