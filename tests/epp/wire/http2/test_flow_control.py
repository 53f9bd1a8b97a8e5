"""Windows that a peer does not keep to, at the moments when nothing is being received."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from epp.wire.http2.frames import (
    DATA,
    END_STREAM,
    INITIAL_WINDOW_SIZE,
    SETTINGS,
    Http2ErrorCode,
    frame,
    rst_stream,
    settings,
)
from epp.wire.http2.limits import Limits

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


def test_one_frame_of_settings_resizes_windows_once(wired: Wire) -> None:
    """It may name the window 2,730 times, each time for thousands of streams."""
    pair = wired()
    for _ in range(4_000):
        pair.open()
    pair.connection.receive(pair.client.data_to_send())
    often = [window for _ in range(1300) for window in (0, 1_000)]
    frame_of_many = settings({INITIAL_WINDOW_SIZE: 0})[9:]
    payload = b"".join(frame_of_many[:2] + window.to_bytes(4, "big") for window in often)
    costs = []
    for _ in range(3):  # a collection of all that the tests before have left would count too
        began = time.process_time()
        pair.connection.receive(frame(SETTINGS, 0, 0, payload))
        costs.append(time.process_time() - began)
    assert min(costs) < 0.05
    assert {stream.window for stream in pair.connection.streams.open.values()} == {1_000}
