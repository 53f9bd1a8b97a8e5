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
    window_update,
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
