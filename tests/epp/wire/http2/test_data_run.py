"""DATA frames that are taken up together are taken up as one by one; and windows that a peer does not keep to."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from epp.request.body import MemoryBudget
from epp.wire.http2.connection import Connection
from epp.wire.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PADDED,
    PING,
    PREFACE,
    SETTINGS,
    DataRun,
    Http2ErrorCode,
    frame,
    rst_stream,
    settings,
    window_update,
)
from epp.wire.http2.header_blocks import Http2Request
from epp.wire.http2.limits import Limits
from epp.wire.http2.outgoing import Outgoing
from epp.wire.http2.streams import Stream

ROOM = 2**24


class Reader:
    """Takes up so many bytes, then resets its stream or leaves the rest."""

    def __init__(self, outgoing: Outgoing, stream: Stream, wanted: int, *, resets: bool) -> None:
        self.outgoing = outgoing
        self.stream = stream
        self.wanted = wanted
        self.resets = resets
        self.read = bytearray()
        self.told: list[str] = []

    def data(self, chunk: bytes | memoryview) -> None:
        if len(self.read) >= self.wanted:
            return
        self.read += chunk
        if self.resets and len(self.read) >= self.wanted:
            self.outgoing.reset(self.stream, Http2ErrorCode.CANCEL)

    def data_run(self, pieces: Iterator[memoryview]) -> None:
        while len(self.read) < self.wanted and (piece := next(pieces, None)):
            self.data(piece)

    def ended(self) -> None:
        self.told.append("ended")

    def lost(self, cause: str) -> None:
        self.told.append(cause)

    def answered(self) -> None:
        self.told.append("answered")

    def close(self) -> None:
        self.told.append("stop")


class Server:
    """A connection with streams 1, 3 and 5, which has a content-length."""

    def __init__(self, limits: Limits, wanted: int = ROOM, *, resets: bool = False) -> None:
        self.readers: list[Reader] = []
        self.said = b""

        def accept(outgoing: Outgoing, stream: Stream, request: Http2Request) -> Reader:
            self.readers.append(Reader(outgoing, stream, wanted, resets=resets))
            return self.readers[-1]

        self.connection = Connection(accept, limits, MemoryBudget(0), lambda: None, lambda: 0.0)
        encoder = Encoder()
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/"),
            ("content-type", "application/grpc"),
        ]
        blocks = [encoder.encode(fields), encoder.encode(fields)]
        blocks.append(encoder.encode([*fields, ("content-length", "20000")]))
        opened = [frame(HEADERS, END_HEADERS, 1 + 2 * i, block) for i, block in enumerate(blocks)]
        self.receive(PREFACE + settings({}) + b"".join(opened))

    def receive(self, data: bytes) -> None:
        """What is read is only lent, and written over by what is read next."""
        buffer = bytearray(data)
        self.connection.receive(memoryview(buffer))
        buffer[:] = bytes(len(buffer))
        while written := self.connection.data_to_send():
            self.said += written

    @property
    def outcome(self) -> tuple[object, ...]:
        read = [(bytes(reader.read), reader.told) for reader in self.readers]
        return self.said, self.connection.failed, sorted(self.connection.streams.open), read


PAYLOAD = bytes(range(200)) * 82
FRAMES = st.builds(
    lambda kind, flags, stream, size: frame(kind, flags, stream, PAYLOAD[:size]),
    st.sampled_from([DATA] * 20 + [PING]),
    st.sampled_from([0] * 8 + [END_STREAM, END_STREAM, PADDED, 0x2]),
    st.sampled_from([1] * 4 + [3, 5, 5, 2**31 + 1]),
    st.sampled_from([0, 1, 4095, 4096, 4096, 9000, 16_384]),
)


@given(
    frames=st.lists(FRAMES, max_size=12),
    cut=st.integers(0, 60_000),
    overhead_frames=st.integers(0, 12),
    wanted=st.sampled_from([0, 4096, 20_000, ROOM]),
    resets=st.booleans(),
)
def test_frames_in_one_read_are_those_that_come_one_by_one(
    frames: list[bytes], cut: int, overhead_frames: int, wanted: int, resets: bool
) -> None:
    limits = Limits(
        overhead_frames=2 + overhead_frames,
        overhead_frames_per_second=0,
        stream_window=ROOM,
        connection_window=ROOM,
    )
    together, one_by_one = Server(limits, wanted, resets=resets), Server(limits, wanted, resets=resets)
    read = b"".join(frames)
    for piece in (read[:cut], read[cut:]):
        together.receive(piece)
    for one in frames:
        one_by_one.receive(one)
    assert together.outcome == one_by_one.outcome


def test_what_comes_after_a_stream_was_reset_is_counted() -> None:
    """However it is read: to be told is no reason to send on for free."""
    server = Server(Limits(overhead_frames=5, overhead_frames_per_second=0), 4096, resets=True)
    server.receive(frame(DATA, 0, 1, PAYLOAD[:4096]) * 6)
    assert server.connection.failed is None  # 5 are allowed after the first
    server.receive(frame(DATA, 0, 1, b""))
    assert server.connection.failed == "too many frames that carry no request"


def halves(pair: Any, messages: Any, body: bytes) -> tuple[int, bytes, bytes]:
    """A stream on which a large message is about to come, and its bytes in two halves."""
    stream: int = pair.open()
    pair.send(stream, messages.headers())
    pair.pump()
    pair.send(stream, messages.body(body, end_of_stream=True))
    read = pair.client.data_to_send()
    return stream, read[: len(read) // 2], read[len(read) // 2 :]


def test_half_a_message_is_kept_when_the_next_read_is_written_over_it(wired: Any, messages: Any) -> None:
    pair, body = wired(), bytes(range(250)) * 200
    stream, *reads = halves(pair, messages, body)
    for read in reads:
        buffer = bytearray(pair.connection.unparsed + read)
        pair.connection.unparsed = b""
        pair.connection.receive(memoryview(buffer))
        buffer[:] = bytes(len(buffer))
    pair.pump()
    _, answer = pair.answers(stream)
    assert answer.request_body.response.body_mutation.streamed_response.body == body


def test_a_message_that_is_whole_counts_no_more_before_its_body_does(wired: Any, messages: Any) -> None:
    pair = wired(memory=60_000)
    stream, first, second = halves(pair, messages, bytes(50_000))
    pair.connection.receive(first)
    assert pair.memory.held > 10_000
    pair.connection.receive(second)
    pair.pump()
    assert [answer.WhichOneof("response") for answer in pair.answers(stream)] == [
        "request_headers",
        "request_body",
    ]


LONG = frame(DATA, 0, 1, bytes(5000))


def test_a_run_that_ends_its_stream() -> None:
    server = Server(Limits())
    server.receive(LONG + frame(DATA, END_STREAM, 1, b"z"))
    assert bytes(server.readers[0].read) == bytes(5000) + b"z"
    assert server.readers[0].told == ["ended"]
    server.receive(LONG + LONG)
    assert server.readers[0].told == ["ended", "a frame after the end of its stream"]
    assert sorted(server.connection.streams.open) == [3, 5]


def test_a_run_of_more_than_the_content_length() -> None:
    server = Server(Limits())
    server.receive(frame(DATA, 0, 5, bytes(9000)) * 3)
    assert server.readers[2].told == ["more DATA than the content-length"]


@pytest.mark.parametrize("flags", [0, END_STREAM])
def test_a_run_beyond_the_window_of_its_stream_ends_it(flags: int) -> None:
    server = Server(Limits(stream_window=20_000))
    server.receive(frame(DATA, 0, 1, bytes(8_000)) * 2 + frame(DATA, flags, 1, bytes(8_000)))
    assert server.readers[0].told == ["more DATA than the stream's window"]
    assert sorted(server.connection.streams.open) == [3, 5]
    assert server.connection.failed is None


def test_a_run_beyond_the_window_of_all_ends_the_connection() -> None:
    server = Server(Limits(connection_window=65_535))
    server.receive(frame(DATA, 0, 1, bytes(16_384)) * 4)
    assert server.connection.failed == "more DATA than the connection's window"


SHORT = frame(DATA, 0, 1, b"x")


@pytest.mark.parametrize(
    "after",
    [
        b"",
        frame(DATA, 0, 3, b"y") + LONG,
        frame(PING, 0, 1, bytes(8)) + LONG,
        frame(DATA, PADDED, 1, b"\0") + LONG,
        frame(DATA, 0, 1) + LONG,
        frame(DATA, 0, 1, bytes(16_385)),
        LONG[:-1],
        LONG[:8],
    ],
)
def test_a_run_ends_where_something_else_comes(after: bytes) -> None:
    run = DataRun(b"?" + LONG + SHORT + after, 1)
    assert [bytes(payload) for payload in run.payloads] == [bytes(5000), b"x"]
    assert (run.size, run.stop, run.end_stream) == (5001, 1 + len(LONG + SHORT), False)


def test_a_run_ends_with_its_stream() -> None:
    run = DataRun(LONG + frame(DATA, END_STREAM, 1, b"z") + SHORT, 0)
    assert (len(run.payloads), run.stop, run.end_stream) == (2, len(LONG) + 10, True)


Wire = Callable[..., Any]


def tunnel(pair: Any, messages: Any) -> int:
    """A stream whose answers wait for window, so that it gets none either."""
    pair.connection.receive(settings({INITIAL_WINDOW_SIZE: 0}))
    stream: int = pair.open()
    pair.send(stream, messages.headers({"upgrade": "x"}))
    pair.send(stream, messages.body(bytes(12_000), end_of_stream=False))
    pair.connection.receive(pair.client.data_to_send())
    pair.output()
    return stream


@pytest.mark.parametrize("flags", [0, END_STREAM])
def test_more_than_a_window_that_is_withheld_ends_its_stream_only(
    wired: Wire, messages: Any, director: Any, flags: int
) -> None:
    pair = wired(Limits(stream_window=20_000))
    stream = tunnel(pair, messages)
    pair.connection.receive(frame(DATA, flags, stream, bytes(16_000)))
    assert rst_stream(stream, Http2ErrorCode.FLOW_CONTROL_ERROR) in pair.output()
    pair.connection.set_blocked(True)
    pair.connection.set_blocked(False)
    assert pair.connection.failed is None
    assert pair.connection.streams.open == {}
    assert pair.memory.held == 0
    assert len(director.released) == 1


def test_a_connection_that_failed_is_left_alone_when_its_peer_reads_again(wired: Wire, messages: Any) -> None:
    pair = wired(Limits(connection_window=65_535))
    streams = [pair.open() for _ in range(5)]
    pair.pump()
    partial = b"\0\0\x10".ljust(16_000, b"\0")
    pair.connection.receive(b"".join(frame(DATA, 0, stream, partial) for stream in streams))
    assert pair.connection.failed == "more DATA than the connection's window"
    pair.connection.set_blocked(True)
    pair.connection.set_blocked(False)
    pair.output()
    assert pair.connection.can_close


def settings_of(*windows: int) -> bytes:
    """One frame that names the window several times."""
    one = settings({INITIAL_WINDOW_SIZE: 0})[9:]
    return frame(SETTINGS, 0, 0, b"".join(one[:2] + window.to_bytes(4, "big") for window in windows))


def cost_beside(silent: int, wired: Wire) -> float:
    """Of settings that name the window again and again, in seconds, on a connection with so many silent streams."""
    pair = wired()
    for _ in range(silent):
        pair.open()
    pair.connection.receive(pair.client.data_to_send())
    pair.output()
    changes = b"".join(settings_of(0, window) for window in (1_000, 2_000) for _ in range(200))
    costs = []
    for _ in range(5):  # a collection of all that the tests before have left would count too
        began = time.process_time()
        pair.connection.receive(changes)
        costs.append(time.process_time() - began)
    assert pair.connection.failed is None
    return min(costs)


def test_settings_cost_the_same_beside_silent_streams(wired: Wire) -> None:
    assert cost_beside(4_000, wired) < 5 * cost_beside(4, wired)


def test_settings_that_make_a_window_too_large_end_the_connection(wired: Wire, messages: Any) -> None:
    """RFC 9113 6.9.2. A stream that is gone has no window any more."""
    for gone in (False, True):
        pair = wired()
        stream = pair.open()
        pair.connection.receive(pair.client.data_to_send() + window_update(stream, 2**31 - 1 - 65_535))
        if gone:
            pair.connection.receive(rst_stream(stream, Http2ErrorCode.CANCEL))
        pair.connection.receive(settings_of(65_536))
        assert pair.connection.failed == (None if gone else "a stream's window is too large")
