"""HTTP/2 frames (RFC 9113 sections 4 and 6): numbers, writers of those that we send, runs of DATA frames in one read. Pure."""

import struct
from enum import IntEnum
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
WITH_PRIORITY: Final = 0x20

ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

FRAME_HEADER_SIZE: Final = 9
"""RFC 9113 4.1."""
DEFAULT_WINDOW: Final = 65_535
LARGEST_WINDOW: Final = 2**31 - 1
"""RFC 9113 6.9.1 and 6.9.2."""
LEAST_FRAME_SIZE: Final = 16_384
LARGEST_FRAME_SIZE: Final = 2**24 - 1
"""The bounds of SETTINGS_MAX_FRAME_SIZE (RFC 9113 6.5.2); the least one is also its default."""
STREAM_ID: Final = 0x7FFFFFFF
"""A mask: the first bit of a stream id is reserved."""

FRAME_HEADER: Final = struct.Struct(">HBBBI")
"""The frame header: 16 and 8 bits of the length, type, flags, stream id."""


class Http2ErrorCode(IntEnum):
    """RFC 9113 section 7."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


class BrokenConnectionError(Exception):
    """A connection error (RFC 9113 5.4.1): answered with GOAWAY and `code`, then the connection ends."""

    def __init__(self, code: Http2ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class BrokenStreamError(Exception):
    """A stream error (RFC 9113 5.4.2): answered with RST_STREAM and `code`; other streams go on."""

    def __init__(self, stream_id: int, code: Http2ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.stream_id = stream_id
        self.code = code


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Encode a frame; `payload` is shorter than 2**24 bytes."""
    size = len(payload)
    return FRAME_HEADER.pack(size >> 8, size & 255, kind, flags, stream_id) + payload


def settings(values: dict[int, int]) -> bytes:
    pairs = (struct.pack(">HI", name, value) for name, value in values.items())
    return frame(SETTINGS, 0, 0, b"".join(pairs))


def parse_settings(payload: bytes) -> list[tuple[int, int]]:
    """The names and values of a SETTINGS frame, in order; raises BrokenConnectionError for what RFC 9113 6.5.2 forbids."""
    if len(payload) % 6:
        raise BrokenConnectionError(Http2ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of a wrong size")
    pairs = list(struct.iter_unpack(">HI", payload))
    for name, value in pairs:
        if name == ENABLE_PUSH and value > 1:
            raise BrokenConnectionError(Http2ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH is 0 or 1")
        if name == INITIAL_WINDOW_SIZE and value > LARGEST_WINDOW:
            raise BrokenConnectionError(Http2ErrorCode.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE is too large")
        if name == MAX_FRAME_SIZE and not LEAST_FRAME_SIZE <= value <= LARGEST_FRAME_SIZE:
            raise BrokenConnectionError(Http2ErrorCode.PROTOCOL_ERROR, "MAX_FRAME_SIZE is out of range")
    return pairs


def window_update(stream_id: int, increment: int) -> bytes:
    """`stream_id` 0 means the connection."""
    return frame(WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))


def rst_stream(stream_id: int, code: Http2ErrorCode) -> bytes:
    return frame(RST_STREAM, 0, stream_id, code.to_bytes(4, "big"))


def goaway(last_stream_id: int, code: Http2ErrorCode, reason: str = "") -> bytes:
    """Streams above `last_stream_id` were not and will not be processed, so a client may retry them."""
    numbers = struct.pack(">II", last_stream_id, code)
    return frame(GOAWAY, 0, 0, numbers + reason.encode()[:200])


def strip_padding(payload: bytes) -> bytes:
    """The payload of a frame with the PADDED flag, without its padding (RFC 9113 6.1); raises BrokenConnectionError."""
    if not payload or payload[0] >= len(payload):
        raise BrokenConnectionError(Http2ErrorCode.PROTOCOL_ERROR, "a frame has more padding than bytes")
    return payload[1 : len(payload) - payload[0]]


def check_frame_size(length: int) -> None:
    """Raise BrokenConnectionError for a frame that is longer than our SETTINGS_MAX_FRAME_SIZE."""
    if length > LEAST_FRAME_SIZE:  # the default, which we do not raise (RFC 9113 6.5.2)
        raise BrokenConnectionError(Http2ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes")


SETTINGS_ACK: Final = frame(SETTINGS, ACK, 0)


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
