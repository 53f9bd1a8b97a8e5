"""A cheap ext_proc client: prepared messages in HTTP/2 frames, each stream as Envoy would hold it.

A stream is opened with everything up to the end of the request in one write; when the picker has answered that, the
response's headers follow, then its chunks one by one, and when all is answered the stream is reset, as Envoy does.
"""

import time
from collections.abc import Iterator
from typing import Final

from hpack import Encoder

from benchmarks.picking.ext_proc_messages import StreamTemplate
from benchmarks.picking.tally import Tally
from epp.ext_proc.protocol import EXT_PROC
from epp.wire.http2 import frames
from epp.wire.http2.frames import FRAME_HEADER, FRAME_HEADER_SIZE, Http2ErrorCode

_HEADERS: Final = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", f"/{EXT_PROC}/Process"),
    (":authority", "picker"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]
_RESPONSE_HEADERS: Final = 0x12
_REQUEST_BODY: Final = 0x1A
_RESPONSE_BODY: Final = 0x22
_IMMEDIATE: Final = 0x3A
_WINDOW: Final = 1 << 30
_WINDOW_STEP: Final = 1 << 24


class _Stream:
    """`left`: bytes of the message that is being read; `unanswered`: bytes of the body that did not come back yet."""

    __slots__ = (
        "held",
        "left",
        "number",
        "opened_at",
        "stream_id",
        "unanswered",
        "unsaid",
        "unsent",
        "window",
    )

    def __init__(self, stream_id: int, window: int, said: StreamTemplate, number: int) -> None:
        self.stream_id = stream_id
        self.window = window
        self.unsent = said.numbered(number)
        self.unanswered = said.body_size
        self.unsaid: Iterator[bytes] = _response(said)
        self.left = 0
        self.held = b""
        self.opened_at = time.perf_counter()


def _response(said: StreamTemplate) -> Iterator[bytes]:
    yield said.response_headers
    for _ in range(said.chunks - 1):
        yield said.chunk
    if said.chunks:
        yield said.last_chunk


class ProcessingClient:
    """One connection with `many` concurrent streams. `leaving`: the picker asked for another one; what is under way ends here."""

    def __init__(self, said: StreamTemplate, many: int, tally: Tally) -> None:
        self.stopping = self.leaving = False
        self._said = said
        self._many = many
        self._tally = tally
        self._streams: dict[int, _Stream] = {}
        self._blocked: dict[int, _Stream] = {}
        self._encoder = Encoder()
        self._next = 1
        self._window = frames.DEFAULT_WINDOW
        self._first_window = frames.DEFAULT_WINDOW
        self._taken = 0
        self._partial = b""
        self._greeted = False
        offered = {frames.INITIAL_WINDOW_SIZE: _WINDOW, frames.ENABLE_PUSH: 0}
        self._out = [frames.PREFACE, frames.settings(offered), frames.window_update(0, _WINDOW)]

    @property
    def under_way(self) -> int:
        return len(self._streams)

    def next_bytes(self) -> bytes:
        """Opens streams once the server's SETTINGS have arrived."""
        if self._blocked:
            for stream in list(self._blocked.values()):
                self._send(stream)
        while self._greeted and not self.stopping and not self.leaving and len(self._streams) < self._many:
            self._open()
        written = b"".join(self._out)
        self._out.clear()
        return written

    def receive(self, data: bytes) -> None:
        """Raises AssertionError when the server ends the connection."""
        self._tally.received += len(data)
        data = self._partial + data
        at = 0
        while len(data) - at >= FRAME_HEADER_SIZE:
            high, low, kind, flags, stream_id = FRAME_HEADER.unpack_from(data, at)
            start = at + FRAME_HEADER_SIZE
            stop = start + (high << 8 | low)
            if stop > len(data):
                break
            at = stop
            if kind == frames.DATA:
                self._data(stream_id, data[start:stop])
            else:
                self._other(kind, flags, stream_id, data[start:stop])
        self._partial = data[at:]

    def _open(self) -> None:
        stream = _Stream(self._next, self._first_window, self._said, self._tally.number())
        self._next += 2
        self._streams[stream.stream_id] = stream
        block = self._encoder.encode(_HEADERS)
        self._out.append(frames.frame(frames.HEADERS, frames.END_HEADERS, stream.stream_id, block))
        self._send(stream)

    def _send(self, stream: _Stream) -> None:
        """Sends as much as the flow-control windows allow."""
        unsent = stream.unsent
        sent = 0
        for payload in unsent:
            if len(payload) > min(stream.window, self._window):
                self._blocked[stream.stream_id] = stream
                break
            stream.window -= len(payload)
            self._window -= len(payload)
            self._out.append(frames.frame(frames.DATA, 0, stream.stream_id, payload))
            sent += 1
        else:
            self._blocked.pop(stream.stream_id, None)
        del unsent[:sent]

    def _data(self, stream_id: int, payload: bytes) -> None:
        self._taken += len(payload)
        if self._taken > _WINDOW_STEP:
            self._out.append(frames.window_update(0, self._taken))
            self._taken = 0
        stream = self._streams.get(stream_id)
        at, end = 0, len(payload)
        while stream is not None and at < end:
            if stream.left:
                step = min(stream.left, end - at)
                stream.left -= step
                at += step
                continue
            # the prefix of five bytes, and the one that says which answer it is
            missing = 6 - len(stream.held)
            head = stream.held + payload[at : at + missing]
            at += missing
            if len(head) < 6:
                stream.held = head
                return
            stream.held = b""
            size = int.from_bytes(head[1:5], "big")
            stream.left = size - 1
            self._answered(stream, head[5], size)

    def _answered(self, stream: _Stream, kind: int, size: int) -> None:
        if kind == _REQUEST_BODY and stream.unanswered > 0:
            stream.unanswered -= size
            if stream.unanswered <= 0:
                self._tally.latencies.append(time.perf_counter() - stream.opened_at)
                self._go_on(stream)
        elif kind in (_RESPONSE_HEADERS, _RESPONSE_BODY):
            self._go_on(stream)
        elif kind == _IMMEDIATE:
            self._end(stream, "the picker answered by itself")

    def _go_on(self, stream: _Stream) -> None:
        message = next(stream.unsaid, None)
        if message is None:
            self._end(stream)
            return
        stream.unsent.append(message)
        self._send(stream)

    def _end(self, stream: _Stream, fault: str = "") -> None:
        if fault:
            self._tally.fail(fault)
        del self._streams[stream.stream_id]
        self._blocked.pop(stream.stream_id, None)
        code = Http2ErrorCode.CANCEL.to_bytes(4, "big")
        self._out.append(frames.frame(frames.RST_STREAM, 0, stream.stream_id, code))

    def _other(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        ended = kind == frames.RST_STREAM or (kind == frames.HEADERS and flags & frames.END_STREAM)
        if ended and stream_id in self._streams:
            self._end(self._streams[stream_id], f"the picker ended the stream: {payload!r}")
        elif kind == frames.SETTINGS and not flags & frames.ACK:
            self._settings(payload)
        elif kind == frames.PING and not flags & frames.ACK:
            self._out.append(frames.frame(frames.PING, frames.ACK, 0, payload))
        elif kind == frames.WINDOW_UPDATE:
            self._grow(stream_id, int.from_bytes(payload, "big"))
        elif kind == frames.GOAWAY:
            self._leave(int.from_bytes(payload[:4], "big"), payload)

    def _leave(self, last: int, payload: bytes) -> None:
        """As Envoy does: streams that the picker did not take are opened on the next connection."""
        assert int.from_bytes(payload[4:8], "big") == 0, f"the picker ended the connection: {payload!r}"
        self.leaving = True
        for stream_id in [one for one in self._streams if one > last]:
            del self._streams[stream_id]
            self._blocked.pop(stream_id, None)

    def _settings(self, payload: bytes) -> None:
        for at in range(0, len(payload), 6):
            if int.from_bytes(payload[at : at + 2], "big") == frames.INITIAL_WINDOW_SIZE:
                window = int.from_bytes(payload[at + 2 : at + 6], "big")
                for stream in self._streams.values():
                    stream.window += window - self._first_window
                self._first_window = window
        self._greeted = True
        self._out.append(frames.SETTINGS_ACK)

    def _grow(self, stream_id: int, increment: int) -> None:
        if stream_id == 0:
            self._window += increment
        elif (stream := self._streams.get(stream_id)) is not None:
            stream.window += increment
