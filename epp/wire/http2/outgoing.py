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
    FRAME_HEADER,
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

BATCH_SIZE: Final = 256 * 1024
"""Bytes of DATA in one batch; the next batch follows when the peer has read this one."""
_TURN_SIZE: Final = 64 * 1024
"""Bytes that one stream may send before the next one has its turn."""
SMALL: Final = 1024
"""Smaller pieces are joined while they wait: an object of its own would take more memory than its bytes."""

Buffer = bytes | bytearray | memoryview


class Outgoing:
    """Collects frames until `data_to_send`. DATA without window waits, counted in `memory`, until `flush` finds window.

    `wake` is called when a frame is added while no caller is about to call `data_to_send`.
    """

    def __init__(self, streams: Streams, memory: MemoryBudget, wake: Callable[[], None]) -> None:
        self.streams = streams
        self._memory = memory
        self._wake = wake
        self._frames: list[Buffer] = []
        self._batch_left = BATCH_SIZE
        self.waiting: dict[int, Stream] = {}
        self.window = DEFAULT_WINDOW
        self.initial_window = DEFAULT_WINDOW
        self._widest = 0  # no open stream has a larger `window`
        self.frame_size = LEAST_FRAME_SIZE
        self.batch = 1  # the number of the batch that the next `data_to_send` returns
        self.corked = False  # a caller calls `data_to_send` when it has finished
        self.blocked = False  # the peer does not read

    def write(self, frames: bytes) -> None:
        """Add frames that need no window."""
        self._frames.append(frames)
        if not self.corked:
            self._wake()

    def data_to_send(self) -> bytes:
        """Return all collected frames and forget them."""
        frames = self._frames
        if not frames:
            return b""
        written = b"".join(frames)
        frames.clear()
        self._batch_left = BATCH_SIZE
        self.batch += 1
        return written

    def send_headers(self, stream: Stream, block: bytes) -> None:
        """Send the headers of an answer; a body or trailers follow."""
        stream.answered_in = self.batch
        self.write(frame(HEADERS, END_HEADERS, stream.id, block))

    def send(self, stream: Stream, pieces: Sequence[Buffer]) -> None:
        """Send DATA after `send_headers`; resets the stream if too much data waits already."""
        size = sum(map(len, pieces))
        if (
            size > self._batch_left
            or size > self.initial_window + stream.window
            or size > self.window
            or self.blocked
            or stream.waiting
        ):
            self._send_some(stream, pieces, size)
        else:
            self._data(stream, pieces, size)
        if not self.corked:
            self._wake()

    def end(self, stream: Stream, block: bytes) -> None:
        """End the answer with trailers, or with headers that are the whole answer; `block` empty: with neither."""
        if stream.waiting:
            stream.ending = block
            return
        stream.half_closed_local = True
        stream.answered_in = stream.answered_in or self.batch
        kind, flags = (HEADERS, END_HEADERS | END_STREAM) if block else (DATA, END_STREAM)
        self.write(frame(kind, flags, stream.id, block))
        if stream.half_closed_remote:
            self.streams.close(stream, by_peer=True)
        else:
            self.streams.silent[stream.id] = stream
        stream.receiver.answered()

    def reset(self, stream: Stream, code: Http2ErrorCode) -> None:
        """Send RST_STREAM and close the stream; its receiver is not called."""
        self.discard(stream)
        self.streams.close(stream, by_peer=False)
        self.write(rst_stream(stream.id, code))

    def discard(self, stream: Stream) -> None:
        """Drop the frames of the stream that wait, and free their memory."""
        if stream.waiting:
            self._memory.release(stream.waiting_size)
            del self.waiting[stream.id]
            stream.waiting.clear()
            stream.waiting_size = 0

    def increment_window(self, stream: Stream | None, increment: int) -> None:
        """WINDOW_UPDATE: the peer accepts `increment` more bytes on a stream, or None: on the connection."""
        if stream is None:
            self.window += increment
            if self.window > LARGEST_WINDOW:
                raise BrokenConnectionError(
                    Http2ErrorCode.FLOW_CONTROL_ERROR, "the connection's window is too large"
                )
            return
        stream.window += increment
        self._widest = max(self._widest, stream.window)
        if self.initial_window + stream.window > LARGEST_WINDOW:
            raise BrokenStreamError(
                stream.id, Http2ErrorCode.FLOW_CONTROL_ERROR, "the stream's window is too large"
            )

    def set_initial_window(self, window: int) -> None:
        """SETTINGS_INITIAL_WINDOW_SIZE changes open streams too; their windows may become negative (RFC 9113 6.9.2).

        It walks no streams, because a peer may send thousands of SETTINGS, unless one may have too large a window.
        """
        self.initial_window = window
        if window + self._widest > LARGEST_WINDOW:
            self._widest = max([0, *[stream.window for stream in self.streams.open.values()]])
            if window + self._widest > LARGEST_WINDOW:
                raise BrokenConnectionError(
                    Http2ErrorCode.FLOW_CONTROL_ERROR, "a stream's window is too large"
                )

    def flush(self) -> None:
        """Send what waits, as far as windows and the size of a batch allow, in turns."""
        before = 0
        while self.waiting and not self.blocked and before != self._batch_left > 0 < self.window:
            before = self._batch_left
            share = max(_TURN_SIZE, self._batch_left // len(self.waiting))
            for stream in list(self.waiting.values()):
                self._send_waiting(stream, share)
                if self._batch_left <= 0 or self.window <= 0:
                    return

    def _send_some(self, stream: Stream, pieces: Sequence[Buffer], size: int) -> None:
        """Send what fits now; the rest waits."""
        room = 0 if self.blocked or stream.waiting else min(self._batch_left, self._room(stream))
        unsent = deque(pieces)
        if room > 0:
            self._data(stream, _pop_bytes(unsent, room), room)
            size -= room
        try:
            self._memory.acquire(size)
        except Rejection:
            self.reset(stream, Http2ErrorCode.ENHANCE_YOUR_CALM)
            stream.receiver.lost("too many unsent bytes: the data plane does not read")
            return
        stream.waiting_size += size
        self.waiting[stream.id] = stream
        if stream.waiting is None:
            stream.waiting = deque()
        for piece in unsent:
            _append(stream.waiting, piece)

    def _send_waiting(self, stream: Stream, share: int) -> None:
        """Send at most `share` bytes of what waits for one stream."""
        size = min(share, stream.waiting_size, self._batch_left, self._room(stream))
        if not stream.waiting or size <= 0:
            return
        self._data(stream, _pop_bytes(stream.waiting, size), size)
        stream.waiting_size -= size
        self._memory.release(size)
        if stream.waiting:
            return
        del self.waiting[stream.id]
        if stream.ending is not None:
            self.end(stream, stream.ending)

    def _room(self, stream: Stream) -> int:
        """Bytes that both windows allow."""
        return min(self.initial_window + stream.window, self.window)

    def _data(self, stream: Stream, pieces: Sequence[Buffer], size: int) -> None:
        """Frame the pieces without joining them."""
        stream.window -= size
        self.window -= size
        self._batch_left -= size
        frames, step = self._frames, self.frame_size
        if size <= step:
            frames.append(FRAME_HEADER.pack(size >> 8, size & 255, DATA, 0, stream.id))
            frames += pieces
            return
        full = FRAME_HEADER.pack(step >> 8, step & 255, DATA, 0, stream.id)
        left = 0  # bytes missing in the frame that is being filled
        for piece in pieces:
            rest = memoryview(piece)
            while len(rest) > left:
                if left:
                    frames.append(rest[:left])
                    rest = rest[left:]
                left = min(step, size)
                size -= left
                frames.append(
                    full if left == step else FRAME_HEADER.pack(left >> 8, left & 255, DATA, 0, stream.id)
                )
            frames.append(rest)
            left -= len(rest)


def _pop_bytes(waiting: deque[Buffer], size: int) -> list[Buffer]:
    """Remove and return the first `size` bytes of what waits."""
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
