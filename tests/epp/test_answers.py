import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp import answers, protocol
from epp.protocol import CONTROL_HEADERS, ProtocolVersion
from epp.wire.messages.ext_proc_pb2 import ProcessingResponse
from tests.data_plane import read


@pytest.mark.parametrize("size", [0, 1, 61_999, 62_000, 62_001, 124_000, 200_000])
@pytest.mark.parametrize("closes", [True, False])
def test_streamed_pieces_are_the_body_and_only_the_last_may_end_it(size: int, closes: bool) -> None:
    body = bytes(index % 251 for index in range(size))
    found = read(answers.streamed("request_body", body, end_of_stream=closes))
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
    assert answers.streamed(kind, bytes(size), end_of_stream=closes) == [expected.SerializeToString()]


@pytest.mark.parametrize("version", ProtocolVersion)
@pytest.mark.parametrize("sent", [(), CONTROL_HEADERS])
def test_routing_is_that_of_the_protocol(version: ProtocolVersion, sent: tuple[str, ...]) -> None:
    common, metadata = protocol.routing(["a:1", "b:2"], version, sent)
    for kind in ("request_headers", "request_body"):
        (answer,) = read([answers.routing(("a:1", "b:2"), version, sent, kind)])
        assert answer.WhichOneof("response") == kind
        assert getattr(answer, kind).response == common
        assert answer.dynamic_metadata == metadata


@pytest.mark.parametrize("kind", ["request_headers", "request_body", "request_trailers", "response_headers"])
def test_go_on_as_it_is(kind: str) -> None:
    (answer,) = read([answers.unchanged(kind)])
    expected = ProcessingResponse()
    getattr(expected, kind).SetInParent()
    assert answer == expected
