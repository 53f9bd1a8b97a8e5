"""Consecutive DATA frames of one stream in one read, as a large message arrives. Pure."""

import struct
from typing import Final

from epp.wire.http2.frames import END_STREAM, FRAME_HEADER_SIZE, LEAST_FRAME_SIZE

LONG_FRAME: Final = 4096
"""Bytes of a DATA frame from which on it is worth looking for more frames of its stream behind it."""
_HEAD: Final = struct.Struct(">HBHI")
"""The frame header with type and flags as one number: for DATA, whose type is 0, that number is its flags."""


class DataRun:
    """The DATA frames from `at` on, up to the first frame that is of another kind or incomplete; the first one is complete.

    `payloads` are views of `data`. `end_stream`: the last frame has END_STREAM. `stop`: the offset of the next frame.
    """

    __slots__ = ("end_stream", "payloads", "size", "stop", "stream_id")

    def __init__(self, data: bytes | memoryview, at: int) -> None:
        view, end, begun = memoryview(data), len(data), at
        payloads: list[memoryview] = []
        stream_id = _HEAD.unpack_from(view, at)[3]
        flags = 0
        while not flags and end - at >= FRAME_HEADER_SIZE:
            high, low, flags, other_id = _HEAD.unpack_from(view, at)
            start = at + FRAME_HEADER_SIZE
            stop = start + (high << 8 | low)
            wanted = other_id == stream_id and flags <= END_STREAM and start < stop <= end
            if not wanted or stop - start > LEAST_FRAME_SIZE:
                flags = 0
                break
            payloads.append(view[start:stop])
            at = stop
        self.stream_id = stream_id
        self.payloads = payloads
        self.size = at - begun - FRAME_HEADER_SIZE * len(payloads)
        self.end_stream = flags == END_STREAM
        self.stop = at
