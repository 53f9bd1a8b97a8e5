"""The limits of what a peer may make us hold and do, and the token bucket that enforces rates. Pure."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one connection, in bytes unless a field says otherwise."""

    streams: int = 4096
    """Streams open at once. Envoy opens another connection for more."""
    offered: int = 0
    """The peer is told this instead, where it is to open another connection sooner; 0: the same. More are served all the same: an
    Envoy opens a burst of streams on a new connection before it has read our SETTINGS, and does not forgive many refusals."""
    header_list: int = 64 * 1024
    """Header names and values of one request, compressed and decompressed, CONTINUATION included."""
    message: int = 4 * 1024 * 1024
    """One gRPC message."""
    stream_window: int = 1024 * 1024
    """The initial window of each stream."""
    connection_window: int = 16 * 1024 * 1024
    """The window of the connection; at least 65,535 (RFC 9113 6.9.2)."""
    overhead_frames: int = 10_000
    """Frames without payload in a burst; `overhead_frames_per_second` more are allowed each second."""
    overhead_frames_per_second: int = 1_000
    silence: float = 10.0
    """Seconds from the HEADERS of a stream to its first message."""
    resets: int = 1_000
    """Streams that the peer resets within a second and before an answer could reach it, or breaks a rule on, in a burst
    (CVE-2023-44487, CVE-2025-8671). Other resets are not counted: Envoy resets every finished stream."""
    resets_per_second: int = 100


class TokenBucket:
    """A token bucket: `take` spends a token and tells whether there was one. `clock` returns seconds.

    It never holds more than `capacity` tokens, whatever was added to `tokens`.
    """

    def __init__(self, capacity: int, per_second: int, clock: Callable[[], float]) -> None:
        self._capacity = capacity
        self._per_second = per_second
        self._clock = clock
        self.tokens = float(capacity)
        self._refilled = clock()

    def take(self) -> bool:
        """Reads the clock only when no token is left."""
        self.tokens = min(self.tokens, self._capacity)
        if self.tokens < 1:
            now = self._clock()
            self.tokens = min(self._capacity, self.tokens + (now - self._refilled) * self._per_second)
            self._refilled = now
            if self.tokens < 1:
                return False
        self.tokens -= 1
        return True
