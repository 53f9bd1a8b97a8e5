"""The sending half of one HTTP/2 connection: frames in order, within the peer's windows (RFC 9113 5.2). Pure."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from epp.request.body import MemoryBudget
from epp.request.rejection import Rejection
from epp.wire.http2.frames import (
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    HEAD,
    HEADERS,
    LARGEST_WINDOW,
    LEAST_FRAME_SIZE,
    BrokenConnectionError,
    BrokenStreamError,
    Http2ErrorCode,
    frame,
    rst_stream,
)
from epp.wire.http2.streams import Stream, Streams

AT_ONCE: Final = 256 * 1024
"""Bytes of DATA in one batch; more is given out when the peer has read that."""
_SHARE: Final = 64 * 1024
"""Bytes that one stream gives out before the next one may."""
SMALL: Final = 1024
"""Pieces of fewer bytes wait together: an object of its own would weigh more than what it holds."""

Buffer = bytes | bytearray | memoryview


class Outgoing:
    """Collects frames until `take`. What finds no window waits, counted in `memory`, until `flush` finds some.

    `wake` is called when something was sent while nobody was about to `take`.
    """

    __slots__ = (
        "_frames",
        "_memory",
        "_room",
        "_wake",
        "batch",
        "blocked",
        "busy",
        "frame_size",
        "initial_window",
        "streams",
        "waiting",
        "window",
    )

    def __init__(self, streams: Streams, memory: MemoryBudget, wake: Callable[[], None]) -> None:
        self.streams = streams
        self._memory = memory
        self._wake = wake
        self._frames: list[Buffer] = []
        self._room = AT_ONCE
        self.waiting: dict[int, Stream] = {}
        self.window = DEFAULT_WINDOW
        self.initial_window = DEFAULT_WINDOW
        self.frame_size = LEAST_FRAME_SIZE
        self.batch = 1  # counts what was taken together
        self.busy = False  # somebody will `take` soon
        self.blocked = False  # the peer does not read what was taken so far

    def write(self, frames: bytes) -> None:
        """Frames that need no window."""
        self._frames.append(frames)
        if not self.busy:
            self._wake()

    def take(self) -> bytes:
        """Everything that may be written now, once."""
        frames = self._frames
        if not frames:
            return b""
        written = b"".join(frames)
        frames.clear()
        self._room = AT_ONCE
        self.batch += 1
        return written

    def head(self, stream: Stream, block: bytes) -> None:
        """The headers of an answer; more follows."""
        stream.answered_in = self.batch
        self.write(frame(HEADERS, END_HEADERS, stream.id, block))

    def send(self, stream: Stream, pieces: Sequence[Buffer]) -> None:
        """DATA of a stream whose headers are sent; resets the stream where too much waits already."""
        size = sum(map(len, pieces))
        if size > self._room or size > stream.window or size > self.window or self.blocked or stream.waiting:
            self._send_some(stream, pieces, size)
        else:
            self._data(stream, pieces, size)
        if not self.busy:
            self._wake()

    def end(self, stream: Stream, block: bytes) -> None:
        """Nothing follows on this stream but these trailers, or headers that are the whole answer; empty: none."""
        if stream.waiting:
            stream.ending = block
            return
        stream.us_done = True
        stream.answered_in = stream.answered_in or self.batch
        kind, flags = (HEADERS, END_HEADERS | END_STREAM) if block else (DATA, END_STREAM)
        self.write(frame(kind, flags, stream.id, block))
        if stream.peer_done:
            self.streams.close(stream, by_peer=True)
        stream.receiver.done()

    def reset(self, stream: Stream, code: Http2ErrorCode) -> None:
        """Stop the stream on both sides; does not tell its receiver."""
        self.drop(stream)
        self.streams.close(stream, by_peer=False)
        self.write(rst_stream(stream.id, code))

    def drop(self, stream: Stream) -> None:
        """Nothing that waits is sent any more."""
        if stream.waiting:
            self._memory.release(stream.waiting_size)
            del self.waiting[stream.id]
            stream.waiting.clear()
            stream.waiting_size = 0

    def grow(self, stream: Stream | None, increment: int) -> None:
        """The peer takes more, of one stream or of all together."""
        if stream is None:
            self.window += increment
            if self.window > LARGEST_WINDOW:
                raise BrokenConnectionError(
                    Http2ErrorCode.FLOW_CONTROL_ERROR, "the connection's window is too large"
                )
            return
        stream.window += increment
        if stream.window > LARGEST_WINDOW:
            raise BrokenStreamError(
                stream.id, Http2ErrorCode.FLOW_CONTROL_ERROR, "the stream's window is too large"
            )

    def resize(self, window: int) -> None:
        """SETTINGS_INITIAL_WINDOW_SIZE: holds for open streams too, whose windows may become negative."""
        change = window - self.initial_window
        self.initial_window = window
        for stream in self.streams.open.values():
            stream.window += change
            if stream.window > LARGEST_WINDOW:
                raise BrokenConnectionError(
                    Http2ErrorCode.FLOW_CONTROL_ERROR, "a stream's window is too large"
                )

    def flush(self) -> None:
        """Frames out of what waits, as far as windows and the room of this batch go, a share for every stream."""
        before = 0
        while self.waiting and not self.blocked and before != self._room > 0 < self.window:
            before = self._room
            share = max(_SHARE, self._room // len(self.waiting))
            for stream in list(self.waiting.values()):
                self._advance(stream, share)
                if self._room <= 0 or self.window <= 0:
                    return

    def _send_some(self, stream: Stream, pieces: Sequence[Buffer], size: int) -> None:
        """What finds room now; the rest waits."""
        room = 0 if self.blocked or stream.waiting else min(self._room, stream.window, self.window)
        unsent = deque(pieces)
        if room > 0:
            self._data(stream, _taken(unsent, room), room)
            size -= room
        try:
            self._memory.take(size)
        except Rejection:
            self.reset(stream, Http2ErrorCode.ENHANCE_YOUR_CALM)
            stream.receiver.lost("too much waits for a data plane that does not read")
            return
        stream.waiting_size += size
        self.waiting[stream.id] = stream
        if stream.waiting is None:
            stream.waiting = deque()
        for piece in unsent:
            _append(stream.waiting, piece)

    def _advance(self, stream: Stream, share: int) -> None:
        """Send so much of what waits for one stream, as far as its windows allow."""
        size = min(share, stream.waiting_size, self._room, stream.window, self.window)
        if not stream.waiting or size <= 0:
            return
        self._data(stream, _taken(stream.waiting, size), size)
        stream.waiting_size -= size
        self._memory.release(size)
        if stream.waiting:
            return
        del self.waiting[stream.id]
        if stream.ending is not None:
            self.end(stream, stream.ending)

    def _data(self, stream: Stream, pieces: Sequence[Buffer], size: int) -> None:
        """In frames, without joining them."""
        stream.window -= size
        self.window -= size
        self._room -= size
        frames, step = self._frames, self.frame_size
        if size <= step:
            frames.append(HEAD.pack(size >> 8, size & 255, DATA, 0, stream.id))
            frames += pieces
            return
        full = HEAD.pack(step >> 8, step & 255, DATA, 0, stream.id)
        left = 0  # of the frame that is being filled
        for piece in pieces:
            rest = memoryview(piece)
            while len(rest) > left:
                if left:
                    frames.append(rest[:left])
                    rest = rest[left:]
                left = min(step, size)
                size -= left
                frames.append(full if left == step else HEAD.pack(left >> 8, left & 255, DATA, 0, stream.id))
            frames.append(rest)
            left -= len(rest)


def _taken(waiting: deque[Buffer], size: int) -> list[Buffer]:
    """The first `size` bytes of what waits, which wait no more."""
    taken = []
    while size:
        piece = waiting.popleft()
        if len(piece) > size:
            rest = memoryview(bytes(piece) if isinstance(piece, bytearray) else piece)
            waiting.appendleft(rest[size:])
            piece = rest[:size]
        taken.append(piece)
        size -= len(piece)
    return taken


def _append(waiting: deque[Buffer], piece: Buffer) -> None:
    if not piece:
        return
    if len(piece) >= SMALL:
        waiting.append(piece)
    elif waiting and isinstance(last := waiting[-1], bytearray):
        last += piece
    else:
        waiting.append(bytearray(piece))
