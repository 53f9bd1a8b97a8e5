"""The streams of one HTTP/2 connection: those that are open, and what became of the others (RFC 9113 5.1). Pure."""

from collections import deque
from collections.abc import Iterator
from enum import Enum, auto
from typing import Final, Protocol

_REMEMBERED: Final = 256
"""Closed streams that are told from streams that never were, of either kind."""


class Receiver(Protocol):
    """What takes up the bytes of one stream. What it raises is a fault of this program and ends the connection."""

    def data(self, chunk: bytes) -> None:
        """More of the body."""

    def data_run(self, pieces: Iterator[memoryview]) -> None:
        """The same, in pieces that are only lent; one that wants no more leaves the rest."""

    def ended(self) -> None:
        """The peer has sent all."""

    def lost(self, cause: str) -> None:
        """The stream is gone, nothing can be sent on it any more."""

    def done(self) -> None:
        """Everything is sent, and the stream ended as it was told to."""

    def close(self) -> None:
        """End now, whatever that means to the peer."""


class Nobody:
    """Takes up what nobody wants to know any more."""

    __slots__ = ()

    def data(self, chunk: bytes) -> None: ...

    def data_run(self, pieces: Iterator[memoryview]) -> None: ...

    def ended(self) -> None:
        """Nothing follows from it."""

    def lost(self, cause: str) -> None: ...

    def done(self) -> None:
        """As it should be."""

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
        self.window = window  # what the peer takes
        self.taken = 0  # what was taken up since the peer was last given window
        self.body_left = body_left  # of the content-length, where there is one
        self.waiting: deque[bytes | bytearray | memoryview] | None = None  # for window
        self.waiting_size = 0
        self.ending: bytes | None = None  # trailers that follow what waits
        self.answered_in = 0  # the batch that the first answer went out with; 0 is none
        self.peer_done = False
        self.us_done = False


class Fate(Enum):
    """What is known of a stream that is not open."""

    IDLE = auto()
    """Not there yet."""
    ENDED_BY_PEER = auto()
    """The peer knows that it is over."""
    ENDED_BY_US = auto()
    """The peer may still have sent something before it heard."""
    UNKNOWN = auto()
    """Skipped, or over for long."""


class Streams:
    """`open` by id; a peer may open the next odd one only."""

    __slots__ = ("_ended_by_peer", "_ended_by_us", "last", "open")

    def __init__(self) -> None:
        self.open: dict[int, Stream] = {}
        self.last = 0
        self._ended_by_peer: deque[int] = deque(maxlen=_REMEMBERED)
        self._ended_by_us: deque[int] = deque(maxlen=_REMEMBERED)

    def close(self, stream: Stream, *, by_peer: bool) -> None:
        """Both sides are done."""
        if self.open.pop(stream.id, None) is not None:
            (self._ended_by_peer if by_peer else self._ended_by_us).append(stream.id)

    def refuse(self, stream_id: int) -> None:
        """It was opened, and closed by us at once."""
        self._ended_by_us.append(stream_id)

    def fate(self, stream_id: int) -> Fate:
        """Of a stream that is not open."""
        if stream_id > self.last or stream_id % 2 == 0:
            return Fate.IDLE
        if stream_id in self._ended_by_us:
            return Fate.ENDED_BY_US
        return Fate.ENDED_BY_PEER if stream_id in self._ended_by_peer else Fate.UNKNOWN

    @property
    def unanswered(self) -> int:
        """How many are open and have no whole answer yet."""
        return sum(not stream.us_done for stream in self.open.values())
