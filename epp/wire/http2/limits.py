"""What a peer may make us hold and do, and the counters that hold it to that. Pure."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one connection, in bytes where nothing else is said."""

    streams: int = 4096
    """Open at once. Envoy opens another connection for more."""
    header_list: int = 64 * 1024
    """Names and values of one request, compressed and not, CONTINUATION included."""
    message: int = 4 * 1024 * 1024
    """One gRPC message."""
    stream_window: int = 1024 * 1024
    """What a stream may send ahead of what we have taken up."""
    connection_window: int = 16 * 1024 * 1024
    """What all streams together may; 65,535 at least (RFC 9113 6.9.2)."""
    chatter: int = 10_000
    """Frames that carry nothing of a request, at once; `chatter_a_second` more come back each second."""
    chatter_a_second: int = 1_000
    resets: int = 1_000
    """Streams that the peer takes back before an answer could reach it. Those that it resets later, as Envoy resets
    every stream that is finished, are not counted."""
    resets_a_second: int = 100


class Bucket:
    """Tokens that come back with time; `take` spends one and says whether there was one. `clock` gives seconds.

    More than `most` are never spent at once, even where `tokens` were added.
    """

    __slots__ = ("_a_second", "_clock", "_most", "_refilled", "tokens")

    def __init__(self, most: int, a_second: int, clock: Callable[[], float]) -> None:
        self._most = most
        self._a_second = a_second
        self._clock = clock
        self.tokens = float(most)
        self._refilled = clock()

    def take(self) -> bool:
        """Looks at the clock only when none is left."""
        self.tokens = min(self.tokens, self._most)
        if self.tokens < 1:
            now = self._clock()
            self.tokens = min(self._most, self.tokens + (now - self._refilled) * self._a_second)
            self._refilled = now
            if self.tokens < 1:
                return False
        self.tokens -= 1
        return True
