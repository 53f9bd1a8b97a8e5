"""The connection against the h2 library as its client, without sockets."""

import gzip
import logging
import tracemalloc
from collections.abc import Callable
from typing import Any

import h2.events
import h2.settings
import pytest
from hpack import Encoder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks import fuzz_wire
from epp.wire.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    HEADERS,
    PING,
    PRIORITY,
    SETTINGS,
    Http2ErrorCode,
    frame,
    goaway,
    rst_stream,
    window_update,
)
from epp.wire.http2.limits import Limits
from epp.wire.messages.health_pb2 import HealthCheckRequest

Wire = Callable[..., Any]


USUAL = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/envoy.service.ext_proc.v3.ExternalProcessor/Process"),
    (":authority", "epp"),
    ("content-type", "application/grpc"),
]


def _replaced(name: str, value: str) -> list[tuple[str, str]]:
    return [(key, value if key == name else old) for key, old in USUAL]


def conversation(pair: Any, messages: Any, body: bytes) -> bytes:
    """All that a client sends for two requests."""
    for _ in range(2):
        stream = pair.open()
        pair.send(stream, messages.headers(), messages.body(body, end_of_stream=False))
        pair.send(stream, messages.body(b"", end_of_stream=True), messages.response_headers())
        pair.client.end_stream(stream)
    sent: bytes = pair.client.data_to_send()
    return sent


def test_a_conversation_cut_at_every_byte(wired: Wire, messages: Any) -> None:
    size = len(conversation(wired(greet=False), messages, bytes(range(256))))
    for cut in range(size):
        pair = wired(greet=False)
        sent = conversation(pair, messages, bytes(range(256)))
        pair.connection.receive(sent[:cut])
        pair.connection.receive(sent[cut:])
        pair.events += pair.client.receive_data(pair.output())
        for stream in (1, 3):
            assert [answer.WhichOneof("response") for answer in pair.answers(stream)] == [
                "request_headers",
                "request_body",
                "response_headers",
            ], cut
            assert pair.status(stream) == "0", cut


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=40,
    deadline=None,
)
@given(
    shape=st.tuples(st.binary(max_size=300), st.lists(st.integers(1, 100), min_size=1, max_size=8))
    | st.tuples(
        st.integers(0, 150_000).map(bytes), st.lists(st.integers(1_000, 16_384), min_size=1, max_size=8)
    ),
    reads=st.lists(st.integers(1, 40_000), max_size=30),
    padding=st.none() | st.integers(0, 255),
)
def test_any_cut_into_frames_and_reads(
    wired: Wire,
    messages: Any,
    shape: tuple[bytes, list[int]],
    reads: list[int],
    padding: int | None,
) -> None:
    """Frames cut anywhere, padded or not, reads cut anywhere, windows given back as the client reads."""
    body, frames = shape
    pair = wired()
    stream = pair.open()
    data = b"".join(
        len(message).to_bytes(5, "big") + message
        for message in (
            each.SerializeToString()
            for each in (
                messages.headers(),
                messages.body(body, end_of_stream=False),
                messages.body(b"", end_of_stream=True),
                messages.response_headers(),
            )
        )
    )
    at, turn = 0, 0
    while at < len(data):
        size = min(frames[turn % len(frames)], 16_384 - 256)
        pair.client.send_data(stream, data[at : at + size], pad_length=padding)
        at, turn = at + size, turn + 1
        asked = pair.client.data_to_send()
        for cut in reads:
            pair.connection.receive(asked[:cut])
            asked = asked[cut:]
        pair.connection.receive(asked)
        _read_and_give_back(pair)
    pair.client.end_stream(stream)
    _read_and_give_back(pair)
    answers = pair.answers(stream)
    pieces = [a.request_body.response.body_mutation.streamed_response.body for a in answers[1:-1]]
    assert b"".join(pieces) == body
    assert answers[-1].HasField("response_headers")
    assert pair.status(stream) == "0"
    assert pair.memory.held == 0
    assert pair.connection.streams.open == {}


def _read_and_give_back(pair: Any) -> None:
    while seen := pair.pump():
        for event in seen:
            if isinstance(event, h2.events.DataReceived):
                pair.client.acknowledge_received_data(event.flow_controlled_length, event.stream_id)


@pytest.mark.parametrize("window", [0, 1, 100, 65_535])
def test_answers_wait_for_window_and_arrive_whole(wired: Wire, messages: Any, window: int) -> None:
    pair = wired()
    pair.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
    pair.pump()
    body = bytes(100_000)
    streams = [pair.open() for _ in range(3)]
    for stream in streams:
        pair.send(stream, messages.headers(), messages.body(body, end_of_stream=True))
        pair.send(stream, messages.response_headers(), end_stream=True)
        pair.pump()
    assert pair.memory.held > 200_000
    pair.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 500_000})
    pair.client.increment_flow_control_window(10_000_000)
    pair.pump()
    for stream in streams:
        answers = pair.answers(stream)
        assert len(answers) == 4
        assert pair.status(stream) == "0"
    assert pair.memory.held == 0


def test_a_stream_that_is_not_read_gets_no_more_window(wired: Wire, messages: Any) -> None:
    """What a client can make us hold for one stream is bounded by the stream's window."""
    pair = wired(Limits(stream_window=100_000))
    pair.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
    pair.pump()
    stream = pair.open()
    pair.send(stream, messages.headers({"upgrade": "websocket"}, response_mode="FULL_DUPLEX_STREAMED"))
    pair.pump()
    sent = 0
    while pair.client.local_flow_control_window(stream) > 10_100:
        pair.send(stream, messages.body(bytes(10_000), end_of_stream=False))
        sent += 1
        pair.pump()
    assert sent <= 10
    assert pair.memory.held < 150_000
    pair.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1_000_000})
    pair.client.increment_flow_control_window(1_000_000)
    pair.pump()
    assert pair.client.local_flow_control_window(stream) > 50_000
    assert len(pair.answers(stream)) == sent + 1


def test_what_waits_for_a_client_that_does_not_read_is_bounded(
    wired: Wire, messages: Any, director: Any
) -> None:
    pair = wired(memory=300_000)
    pair.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
    pair.pump()
    streams = [pair.open() for _ in range(10)]
    for stream in streams:
        pair.send(stream, messages.headers(), messages.body(bytes(60_000), end_of_stream=True))
        pair.pump()
        assert pair.memory.held <= 300_000
    assert pair.resets()
    assert set(pair.resets().values()) <= {Http2ErrorCode.ENHANCE_YOUR_CALM}
    for stream in set(streams) - set(pair.resets()):
        pair.client.reset_stream(stream)
    pair.pump()
    assert pair.memory.held == 0
    assert len(director.released) == len(director.directed)


def test_unfinished_messages_are_bounded(wired: Wire, messages: Any) -> None:
    pair = wired(memory=100_000)
    stream = pair.open()
    for _ in range(8):
        pair.client.send_data(stream, (b"\0" + (200_000).to_bytes(4, "big")).ljust(15_000, b"x"))
        pair.pump()
        pair.client.send_data(stream, bytes(1)) if pair.status(stream) is None else None
        if pair.status(stream):
            break
    assert pair.status(stream) == "8"
    assert pair.memory.held == 0


@pytest.mark.parametrize(
    ("data", "ends", "status"),
    [
        (b"\0" + (2**31).to_bytes(4, "big"), False, "8"),
        (b"\0\0\0\0\5ab", True, "13"),
        (b"\0\0\0\0\3\xff\xff\xff", False, "13"),
        (b"\1\0\0\0\0", False, "13"),
    ],
    ids=["too large, before it came", "cut off", "no message", "zip"],
)
def test_what_cannot_be_read_ends_its_stream(
    wired: Wire, messages: Any, data: bytes, ends: bool, status: str
) -> None:
    pair = wired()
    stream = pair.open()
    pair.client.send_data(stream, data, end_stream=ends)
    pair.pump()
    assert pair.status(stream) == status
    after = pair.open()
    pair.send(after, messages.headers(end_of_stream=True))
    pair.pump()
    assert len(pair.answers(after)) == 1


@pytest.mark.parametrize(
    ("headers", "http", "grpc"),
    [
        (_replaced("content-type", "application/json"), "415", None),
        (_replaced("content-type", "application/grpcx"), "415", None),
        (_replaced("content-type", "application/grpc+proto"), "200", "0"),
        (_replaced(":method", "GET"), "405", None),
        (_replaced(":path", "/nothing/There"), "200", "12"),
        ([*USUAL, ("grpc-encoding", "snappy")], "200", "12"),
        ([*USUAL, ("grpc-encoding", "gzip")], "200", "0"),
        ([*USUAL, ("grpc-encoding", "identity")], "200", "0"),
    ],
)
def test_what_is_no_call_of_ours(
    wired: Wire, headers: list[tuple[str, str]], http: str, grpc: str | None
) -> None:
    pair = wired()
    pair.client.send_headers(1, headers, end_stream=True)
    pair.pump()
    (answer,) = [e for e in pair.events if isinstance(e, h2.events.ResponseReceived)]
    assert dict(answer.headers)[":status"] == http
    assert pair.status(1) == grpc
    assert pair.connection.streams.open == {}


def test_another_encoding_is_refused_with_those_that_are_read(wired: Wire) -> None:
    pair = wired()
    pair.client.send_headers(1, [*USUAL, ("grpc-encoding", "snappy")], end_stream=True)
    pair.pump()
    (answer,) = [e for e in pair.events if isinstance(e, h2.events.ResponseReceived)]
    said = dict(answer.headers)
    assert (said["grpc-status"], said["grpc-accept-encoding"]) == ("12", "identity,gzip")


def test_many_small_messages_become_large_one_after_the_other(
    wired: Wire, messages: Any, director: Any
) -> None:
    """What one read inflates to is not held together: each piece counts before the next one is looked at."""
    pair = wired(memory=8 * 1024 * 1024)
    stream = pair.open([("grpc-encoding", "gzip")])
    pieces = [messages.headers(), *[messages.body(bytes(4_000_000), end_of_stream=False)] * 10]
    packed = [gzip.compress(piece.SerializeToString()) for piece in pieces]
    data = b"".join(b"\1" + len(one).to_bytes(4, "big") + one for one in packed)
    tracemalloc.start()
    try:
        for start in range(0, len(data), 16_000):
            pair.client.send_data(stream, data[start : start + 16_000])
        pair.pump()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 20 * 1024 * 1024
    assert [answer.immediate_response.status.code for answer in pair.answers(stream)] == [503]
    assert director.directed == []


def test_a_deadline_ends_a_call_that_is_not_answered(wired: Wire, messages: Any, director: Any) -> None:
    pair = wired()
    stream = pair.open([("grpc-timeout", "250m")])
    pair.send(stream, messages.headers())
    pair.pump()
    ((when, expire),) = pair.timers
    assert when == pytest.approx(pair.now + 0.25)
    expire()
    assert pair.woken
    pair.pump()
    assert pair.status(stream) == "4"
    assert pair.processor.streams == set()


def test_a_deadline_is_forgotten_with_its_call(wired: Wire, messages: Any) -> None:
    pair = wired()
    stream = pair.open([("grpc-timeout", "1S")])
    pair.send(stream, messages.headers(end_of_stream=True), end_stream=True)
    pair.pump()
    assert pair.status(stream) == "0"
    assert pair.timers == []


def test_after_the_response_headers_even_a_deadline_ends_ok(wired: Wire, messages: Any) -> None:
    pair = wired()
    stream = pair.open([("grpc-timeout", "1S")])
    pair.send(stream, messages.headers(end_of_stream=True), messages.response_headers())
    pair.pump()
    pair.timers[0][1]()
    pair.pump()
    assert pair.status(stream) == "0"


def test_leaving_serves_what_comes_before_it_is_heard(wired: Wire, messages: Any) -> None:
    pair = wired()
    before = pair.open()
    pair.send(before, messages.headers())
    pair.pump()
    pair.connection.drain()
    between = pair.open()
    pair.send(between, messages.headers(end_of_stream=True), end_stream=True)
    pair.connection.receive(pair.client.data_to_send())
    said = pair.output()
    assert said.startswith(goaway(2**31 - 1, Http2ErrorCode.NO_ERROR))
    assert b"grpc-status\x010" in said
    pair.connection.receive(frame(PING, ACK, 0, said[26:34]))  # it has been heard
    assert pair.output() == goaway(between, Http2ErrorCode.NO_ERROR)
    assert not pair.connection.can_close
    pair.connection.receive(rst_stream(before, Http2ErrorCode.CANCEL))
    assert pair.connection.can_close


def test_streams_after_the_last_goaway_are_refused(wired: Wire) -> None:
    pair = wired()
    pair.connection.refuse_streams()
    late = pair.open()
    pair.connection.receive(pair.client.data_to_send())
    assert rst_stream(late, Http2ErrorCode.REFUSED_STREAM) in pair.output()


def test_more_streams_than_there_may_be_are_refused(wired: Wire, messages: Any) -> None:
    pair = wired(Limits(streams=3))
    assert pair.client.remote_settings.max_concurrent_streams == 3
    for stream in (1, 3, 5):
        pair.client.send_headers(stream, USUAL)
    pair.connection.receive(pair.client.data_to_send())
    pair.connection.receive(frame(HEADERS, END_HEADERS, 7, bytes(Encoder().encode(USUAL))))
    assert rst_stream(7, Http2ErrorCode.REFUSED_STREAM) in pair.output()
    assert len(pair.processor.streams) == 3


FLOODS = {
    "settings": frame(SETTINGS, 0, 0),
    "ping": frame(PING, 0, 0, bytes(8)),
    "priority": frame(PRIORITY, 0, 1, bytes(5)),
    "window": window_update(0, 1),
    "unknown": frame(77, 0, 0, b"x"),
    "empty data": frame(DATA, 0, 1),
    "goaway": goaway(0, Http2ErrorCode.NO_ERROR),
    "resets of nothing": rst_stream(1, Http2ErrorCode.CANCEL),
}


@pytest.mark.parametrize("kind", FLOODS)
def test_frames_that_carry_nothing_are_rationed(wired: Wire, kind: str) -> None:
    pair = wired(Limits(overhead_frames=500, overhead_frames_per_second=100))
    pair.open()
    pair.pump()
    if kind == "resets of nothing":
        pair.connection.receive(FLOODS[kind])
    pair.connection.receive(FLOODS[kind] * 400)
    assert not pair.connection.can_close
    pair.now += 10
    for _ in range(4):
        pair.connection.receive(FLOODS[kind] * 400)
    assert pair.connection.can_close
    said = pair.output()
    assert goaway(1, Http2ErrorCode.ENHANCE_YOUR_CALM, "too many frames that carry no request") in said
    assert pair.processor.streams == set()


def test_frames_that_come_with_requests_are_not_rationed(wired: Wire, messages: Any) -> None:
    """As many WINDOW_UPDATEs as a client needs that is answered much."""
    pair = wired(Limits(overhead_frames=50, overhead_frames_per_second=0))
    for _ in range(200):
        stream = pair.open()
        pair.send(stream, messages.headers(end_of_stream=True), end_stream=True)
        pair.connection.receive(pair.client.data_to_send() + window_update(0, 100) * 3)
        pair.pump()
    assert pair.connection.failed is None


def test_a_header_block_without_end_is_bounded(wired: Wire) -> None:
    pair = wired()
    pair.connection.receive(frame(HEADERS, 0, 1, b"x" * 16_000))
    for _ in range(10):
        pair.connection.receive(frame(CONTINUATION, 0, 1, b"x" * 16_000))
    assert pair.connection.can_close
    assert Http2ErrorCode.ENHANCE_YOUR_CALM.to_bytes(4, "big") in pair.output()


def test_empty_continuations_are_rationed(wired: Wire) -> None:
    pair = wired(Limits(overhead_frames=100, overhead_frames_per_second=1))
    pair.connection.receive(frame(HEADERS, 0, 1, b""))
    pair.connection.receive(frame(CONTINUATION, 0, 1, b"") * 200)
    assert pair.connection.can_close


def test_a_header_list_that_inflates_is_bounded(wired: Wire) -> None:
    pair = wired()
    pair.client.send_headers(1, [*USUAL, ("x", "y" * 4000)])
    pair.pump()
    indexed = b"\xbe" * 10_000  # the same 4 KB field, ten thousand times over
    pair.connection.receive(frame(HEADERS, END_HEADERS, 3, indexed))
    assert pair.connection.can_close


def test_streams_that_are_reset_unanswered_are_rationed(wired: Wire, messages: Any) -> None:
    pair = wired(Limits(resets=50, resets_per_second=10))
    for _ in range(60):
        stream = pair.open()
        pair.send(stream, messages.headers(end_of_stream=True))
        pair.client.reset_stream(stream)
    pair.connection.receive(pair.client.data_to_send())
    assert pair.connection.failed == "too many streams are reset unanswered"
    assert pair.processor.streams == set()


def test_clients_that_give_up_waiting_cost_the_others_nothing(wired: Wire, messages: Any) -> None:
    """Through Envoy all of them are streams of one connection."""
    pair = wired()
    streams = [pair.open() for _ in range(3_000)]
    pair.connection.receive(pair.client.data_to_send())
    pair.now += 1
    for stream in streams[:2_200]:
        pair.client.reset_stream(stream)
    pair.connection.receive(pair.client.data_to_send())
    assert pair.connection.failed is None
    assert len(pair.processor.streams) == 800


def test_resets_that_a_peer_provokes_are_rationed(wired: Wire, messages: Any) -> None:
    """MadeYouReset, CVE-2025-8671: a frame that breaks a rule makes the server reset the stream."""
    pair = wired(Limits(resets=50, resets_per_second=10))
    for _ in range(60):
        stream = pair.open()
        pair.send(stream, messages.headers(end_of_stream=True))
        pair.connection.receive(pair.client.data_to_send())
        pair.output()
        pair.connection.receive(window_update(stream, 0))
    assert pair.connection.failed == "too many streams are reset unanswered"


def test_streams_that_ask_for_nothing_are_ended(wired: Wire, messages: Any, director: Any) -> None:
    pair = wired()
    begun, silent, half = pair.open(), pair.open(), pair.open()
    pair.send(begun, messages.headers())
    pair.client.send_data(half, b"\0\0\0\0\7half")
    answered = pair.client.get_next_available_stream_id()
    pair.client.send_headers(answered, _replaced(":path", "/nothing/There"))
    pair.pump()
    assert not pair.connection.idle
    pair.now += 9
    young = pair.open()
    pair.pump()
    pair.connection.end_silent_streams()
    pair.pump()
    assert pair.resets() == {}
    pair.now += 2
    pair.connection.end_silent_streams()
    pair.pump()
    assert pair.resets() == {
        silent: Http2ErrorCode.CANCEL,
        half: Http2ErrorCode.CANCEL,
        answered: Http2ErrorCode.NO_ERROR,
    }
    assert pair.memory.held == 0
    assert list(pair.connection.streams.open) == [begun, young]
    pair.client.reset_stream(begun)
    pair.pump()
    assert pair.connection.idle


@pytest.mark.parametrize("responded", [True, False])
def test_streams_that_are_reset_after_their_answer_are_not(
    wired: Wire, messages: Any, director: Any, responded: bool
) -> None:
    """Envoy resets every finished stream, and every stream whose client leaves."""
    pair = wired(Limits(resets=5, resets_per_second=0))
    for _ in range(500):
        stream = pair.open()
        pair.send(stream, messages.headers(end_of_stream=True))
        pair.pump()
        if responded:
            pair.send(stream, messages.response_headers())
            pair.pump()
        pair.client.reset_stream(stream)
    pair.pump()
    assert pair.connection.failed is None
    assert len(director.released) == 500


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(DATA, 0, 0, b"x"), Http2ErrorCode.PROTOCOL_ERROR),
        (frame(DATA, 0, 9, b"x"), Http2ErrorCode.PROTOCOL_ERROR),
        (frame(DATA, 8, 1, b"\x05ab"), Http2ErrorCode.PROTOCOL_ERROR),
        (frame(SETTINGS, 0, 0, b"x"), Http2ErrorCode.FRAME_SIZE_ERROR),
        (frame(PING, 0, 0, b"x"), Http2ErrorCode.FRAME_SIZE_ERROR),
        (frame(HEADERS, END_HEADERS, 2, b""), Http2ErrorCode.PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS, 3, b"\xff\xff\xff\xff\xff"), Http2ErrorCode.COMPRESSION_ERROR),
        (b"\xff\xff\xff\0\0\0\0\0\1", Http2ErrorCode.FRAME_SIZE_ERROR),
        (window_update(0, 2**31 - 1), Http2ErrorCode.FLOW_CONTROL_ERROR),
        (frame(5, 0, 1, bytes(4)), Http2ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_what_breaks_a_connection(
    wired: Wire, messages: Any, director: Any, sent: bytes, code: Http2ErrorCode
) -> None:
    pair = wired()
    stream = pair.open()
    pair.send(stream, messages.headers(end_of_stream=True))
    pair.pump()
    pair.connection.receive(sent)
    pair.events += pair.client.receive_data(pair.output())
    assert pair.goodbyes() == [code]
    assert pair.connection.can_close
    assert len(director.released) == 1
    pair.connection.receive(b"whatever follows")
    assert pair.output() == b""


def test_more_data_than_windows_allow(wired: Wire) -> None:
    pair = wired(Limits(stream_window=10_000))
    stream = pair.open()
    pair.pump()
    pair.connection.receive(frame(DATA, 0, stream, b"\0\0\x10".ljust(16_000, b"\0")))
    assert rst_stream(stream, Http2ErrorCode.FLOW_CONTROL_ERROR) in pair.output()
    assert pair.memory.held == 0
    pair = wired(Limits(connection_window=65_535))
    streams = [pair.open() for _ in range(5)]
    pair.pump()
    partial = b"\0\0\x10".ljust(16_000, b"\0")
    pair.connection.receive(b"".join(frame(DATA, 0, stream, partial) for stream in streams))
    assert pair.connection.failed == "more DATA than the connection's window"


def test_a_fault_of_the_picker_ends_its_stream_only(wired: Wire, messages: Any, director: Any) -> None:
    pair = wired()
    good, director.outcome = director.outcome, ZeroDivisionError("secret prompt")
    stream = pair.open()
    pair.send(stream, messages.headers(end_of_stream=True))
    pair.pump()
    assert pair.status(stream) == "13"
    director.outcome = good
    after = pair.open()
    pair.send(after, messages.headers(end_of_stream=True), end_stream=True)
    pair.pump()
    assert pair.status(after) == "0"


@pytest.mark.parametrize("method", ["Check", "Watch"])
def test_what_is_kept_of_a_health_request_is_short(wired: Wire, method: str) -> None:
    """Anybody may ask for health, on thousands of streams at once, and end none of them."""
    pair = wired()
    stream = pair.client.get_next_available_stream_id()
    pair.client.send_headers(stream, _replaced(":path", f"/grpc.health.v1.Health/{method}"))
    long = HealthCheckRequest(service="x" * 60_000).SerializeToString()
    data = len(long).to_bytes(5, "big") + long
    for start in range(0, len(data), 16_384):
        pair.client.send_data(stream, data[start : start + 16_384])
    pair.pump()
    assert pair.status(stream) == "8"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_broken_frames_and_messages_break_nothing_else(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """The long run is `python -m benchmarks.fuzz_wire`."""
    caplog.set_level(logging.CRITICAL)
    fuzz = fuzz_wire.run(10_000, seed)
    assert fuzz.frames_fed >= 10_000
    assert fuzz.slowest < 5.0
