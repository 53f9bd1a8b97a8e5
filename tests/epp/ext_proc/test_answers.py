from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.ext_proc import answers, protocol
from epp.ext_proc.exchange_settings import ProtocolVersion
from epp.request.body import LARGE_PIECE
from epp.request.control_headers import DATA_PLANE_ONLY
from epp.wire.messages.ext_proc_pb2 import ProcessingResponse
from tests.decoded_exchange import read


@pytest.mark.parametrize("size", [0, 1, 61_999, 62_000, 62_001, 124_000, 200_000])
@pytest.mark.parametrize("closes", [True, False])
def test_streamed_pieces_are_the_body_and_only_the_last_may_end_it(size: int, closes: bool) -> None:
    body = bytes(index % 251 for index in range(size))
    found = read(answers.streamed("request_body", (body,), end_of_stream=closes))
    pieces = [answer.request_body.response.body_mutation.streamed_response for answer in found]
    assert b"".join(piece.body for piece in pieces) == body
    assert all(len(piece.body) <= 62_000 for piece in pieces)
    assert [piece.end_of_stream for piece in pieces] == [False] * (len(pieces) - 1) + [closes]


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


SIZES = st.sampled_from([0, 1, 100, 4096, 5000, 61_999, 62_000, 62_001, 65_536, 65_537, 200_000])


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
