"""The streams of one HTTP/2 connection: the open ones, and how closed ones ended (RFC 9113 5.1). Pure."""

from collections import deque
from collections.abc import Iterator
from enum import Enum, auto
from typing import Final, Protocol

_REMEMBERED: Final = 256
"""The number of closed streams that are remembered, for each side that closed them."""


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

    def answered(self) -> None:
        """The whole answer is sent."""

    def close(self) -> None:
        """The server shuts down: end the stream now."""


class NullReceiver:
    """A Receiver that ignores everything: for a stream whose call is over."""

    __slots__ = ()

    def data(self, chunk: bytes) -> None: ...
    def data_run(self, pieces: Iterator[memoryview]) -> None: ...
    def ended(self) -> None: ...
    def lost(self, cause: str) -> None: ...
    def answered(self) -> None: ...
    def close(self) -> None: ...


NULL_RECEIVER: Final = NullReceiver()


class Stream:
    """One request and its answer; sizes and windows in bytes."""

    __slots__ = (
        "answered_in",
        "body_left",
        "ending",
        "half_closed_local",
        "half_closed_remote",
        "id",
        "opened_at",
        "receiver",
        "unacknowledged",
        "waiting",
        "waiting_size",
        "window",
    )

    def __init__(self, stream_id: int, body_left: int | None, opened_at: float = 0.0) -> None:
        self.id = stream_id
        self.opened_at = opened_at  # on the clock of its connection
        self.receiver: Receiver = NULL_RECEIVER
        self.window = (
            0  # bytes that the peer accepts beyond `Outgoing.initial_window`; negative once some are sent
        )
        self.unacknowledged = 0  # bytes received since its last WINDOW_UPDATE
        self.body_left = body_left  # of the content-length; None without one
        self.waiting: deque[bytes | bytearray | memoryview] | None = None  # unsent pieces, for lack of window
        self.waiting_size = 0
        self.ending: bytes | None = None  # trailers to send after `waiting`
        self.answered_in = 0  # the batch that held the first frame of the answer; 0: none yet
        self.half_closed_remote = False  # the peer sent END_STREAM (RFC 9113 5.1)
        self.half_closed_local = False  # we sent END_STREAM


class StreamState(Enum):
    """The state of a stream that is not open (RFC 9113 5.1), and which side closed it, as far as that is remembered."""

    IDLE = auto()
    """Not opened yet."""
    CLOSED_BY_PEER = auto()
    """The peer closed it, so any further frame is an error."""
    CLOSED_BY_US = auto()
    """We closed it; frames that the peer sent before it knew may still arrive."""
    UNKNOWN = auto()
    """Closed long ago, or its id was skipped: opening a stream closes all idle ones below it (RFC 9113 5.1.1)."""


class Streams:
    """`open` by id. A client opens odd ids in ascending order (RFC 9113 5.1.1); `last` is the highest.

    `silent`: open ones whose peer has asked for nothing yet, or did not end its side after the whole answer. `proven`: a
    message of the peer was answered. `peer`: the address that the connection came from.
    """

    def __init__(self) -> None:
        self.open: dict[int, Stream] = {}
        self.silent: dict[int, Stream] = {}
        self.proven = False
        self.peer = ""
        self.last = 0
        self._closed_by_peer: deque[int] = deque(maxlen=_REMEMBERED)
        self._closed_by_us: deque[int] = deque(maxlen=_REMEMBERED)

    def add(self, stream: Stream) -> None:
        """It counts as silent until its peer has asked for something."""
        self.open[stream.id] = self.silent[stream.id] = stream

    def close(self, stream: Stream, *, by_peer: bool) -> None:
        """Remove a stream from `open`; `by_peer`: it can send nothing more."""
        self.silent.pop(stream.id, None)
        if self.open.pop(stream.id, None) is not None:
            (self._closed_by_peer if by_peer else self._closed_by_us).append(stream.id)

    def refuse(self, stream_id: int) -> None:
        """Remember a stream that we refused as closed by us."""
        self._closed_by_us.append(stream_id)

    def state(self, stream_id: int) -> StreamState:
        if stream_id > self.last or stream_id % 2 == 0:
            return StreamState.IDLE
        if stream_id in self._closed_by_us:
            return StreamState.CLOSED_BY_US
        return StreamState.CLOSED_BY_PEER if stream_id in self._closed_by_peer else StreamState.UNKNOWN

    @property
    def unanswered(self) -> int:
        """The number of open streams whose answer is incomplete."""
        return sum(not stream.half_closed_local for stream in self.open.values())
