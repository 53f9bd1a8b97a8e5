"""DATA frames of one stream that stand one after the other in what was read, as a large message comes. Pure."""

import struct
from typing import Final

from epp.wire.http2.frames import END_STREAM, HEAD_SIZE, LEAST_FRAME_SIZE

LONG: Final = 4096
"""Bytes of a DATA frame that is worth a look whether more of its stream follow it."""
_HEAD: Final = struct.Struct(">HBHI")
"""As HEAD, with type and flags in one number: that of DATA is its flags."""


class DataRun:
    """The frames from `at` on, the first of which is whole, until one is anything else, or is not whole.

    `payloads` are views of what was read. `ends`: the last of them ends the stream. `stop`: where the next frame begins.
    """

    __slots__ = ("ends", "payloads", "size", "stop", "stream_id")

    def __init__(self, data: bytes | memoryview, at: int) -> None:
        view, end, begun = memoryview(data), len(data), at
        payloads: list[memoryview] = []
        stream_id = _HEAD.unpack_from(view, at)[3]
        flags = 0
        while not flags and end - at >= HEAD_SIZE:
            high, low, flags, other_id = _HEAD.unpack_from(view, at)
            start = at + HEAD_SIZE
            stop = start + (high << 8 | low)
            wanted = other_id == stream_id and flags <= END_STREAM and start < stop <= end
            if not wanted or stop - start > LEAST_FRAME_SIZE:
                flags = 0
                break
            payloads.append(view[start:stop])
            at = stop
        self.stream_id = stream_id
        self.payloads = payloads
        self.size = at - begun - HEAD_SIZE * len(payloads)
        self.ends = flags == END_STREAM
        self.stop = at
