"""The streams of one HTTP/2 connection: the open ones, and how closed ones ended (RFC 9113 5.1). Pure."""

from collections import deque
from collections.abc import Iterator
from enum import Enum, auto
from typing import Final, Protocol

_REMEMBERED: Final = 256
"""Closed streams whose ending is remembered, for each side that can end one."""


class Receiver(Protocol):
    """Consumes the bytes of one stream. An exception is a fault of this program and ends the connection."""

    def data(self, chunk: bytes) -> None:
        """A part of the body."""

    def data_run(self, pieces: Iterator[memoryview]) -> None:
        """Parts of the body as views that are valid during the call only; a receiver may stop iterating early."""

    def ended(self) -> None:
        """The peer has ended its side."""

    def lost(self, cause: str) -> None:
        """The stream is closed before its answer was complete; nothing can be sent on it."""

    def done(self) -> None:
        """The whole answer is sent."""

    def close(self) -> None:
        """The server shuts down: end the stream now."""


class Nobody:
    """Receiver of a stream whose call is over: ignores everything."""

    __slots__ = ()

    def data(self, chunk: bytes) -> None: ...

    def data_run(self, pieces: Iterator[memoryview]) -> None: ...

    def ended(self) -> None:
        """Ignored."""

    def lost(self, cause: str) -> None: ...

    def done(self) -> None:
        """Ignored."""

    def close(self) -> None: ...


NOBODY: Final = Nobody()


class Stream:
    """One request and its answer; sizes and windows in bytes."""

    __slots__ = (
        "answered_in",
        "body_left",
        "ending",
        "id",
        "peer_done",
        "receiver",
        "taken",
        "us_done",
        "waiting",
        "waiting_size",
        "window",
    )

    def __init__(self, stream_id: int, window: int, body_left: int | None) -> None:
        self.id = stream_id
        self.receiver: Receiver = NOBODY
        self.window = window  # bytes that the peer still accepts
        self.taken = 0  # bytes received since its last WINDOW_UPDATE
        self.body_left = body_left  # of the content-length; None without one
        self.waiting: deque[bytes | bytearray | memoryview] | None = None  # unsent pieces, for lack of window
        self.waiting_size = 0
        self.ending: bytes | None = None  # trailers to send after `waiting`
        self.answered_in = 0  # the batch that held the first frame of the answer; 0: none yet
        self.peer_done = False
        self.us_done = False


class Fate(Enum):
    """How a stream that is not open ended, as far as that is remembered."""

    IDLE = auto()
    """Never opened."""
    ENDED_BY_PEER = auto()
    """The peer ended it, so it may send nothing more."""
    ENDED_BY_US = auto()
    """We ended it; frames that the peer sent before it knew may still arrive."""
    UNKNOWN = auto()
    """Its id was skipped, or it ended long ago."""


class Streams:
    """`open` by id. A client opens odd ids in ascending order (RFC 9113 5.1.1); `last` is the highest."""

    __slots__ = ("_ended_by_peer", "_ended_by_us", "last", "open")

    def __init__(self) -> None:
        self.open: dict[int, Stream] = {}
        self.last = 0
        self._ended_by_peer: deque[int] = deque(maxlen=_REMEMBERED)
        self._ended_by_us: deque[int] = deque(maxlen=_REMEMBERED)

    def close(self, stream: Stream, *, by_peer: bool) -> None:
        """Both sides have ended the stream."""
        if self.open.pop(stream.id, None) is not None:
            (self._ended_by_peer if by_peer else self._ended_by_us).append(stream.id)

    def refuse(self, stream_id: int) -> None:
        """We refused the stream when it was opened."""
        self._ended_by_us.append(stream_id)

    def fate(self, stream_id: int) -> Fate:
        """For a stream that is not open."""
        if stream_id > self.last or stream_id % 2 == 0:
            return Fate.IDLE
        if stream_id in self._ended_by_us:
            return Fate.ENDED_BY_US
        return Fate.ENDED_BY_PEER if stream_id in self._ended_by_peer else Fate.UNKNOWN

    @property
    def unanswered(self) -> int:
        """The number of open streams whose answer is incomplete."""
        return sum(not stream.us_done for stream in self.open.values())
