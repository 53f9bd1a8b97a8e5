"""Limits the open connections of one port: evicts the one that is idle for longest, closes those idle for too long."""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

MAX_SWEEP_INTERVAL: Final = 5.0
"""Upper bound of the seconds between two checks for idle connections."""


class ServedConnection(Protocol):
    """A connection that may be closed when it is idle."""

    @property
    def idle_since(self) -> float | None:
        """On the loop's clock; None while a request runs."""

    def abort(self) -> None: ...


class Connections:
    """`handshaking`: accepted connections that are not open yet, such as in a TLS handshake. They count, and have a time-out of their own."""

    def __init__(self, max_connections: int, idle_timeout: float) -> None:
        self.max_connections = max_connections
        self._idle_timeout = idle_timeout
        self.open: set[ServedConnection] = set()
        self.handshaking = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Check for idle connections from now on."""
        self._sweep(asyncio.get_running_loop())

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def filled_by_handshakes(self) -> bool:
        """Whether there is no room, but only because of connections that are not open yet."""
        return self.handshaking > 0 and len(self.open) + self.handshaking >= self.max_connections

    def admit(self) -> bool:
        """Whether there is room for one more connection; evicts the one that is idle for longest if necessary."""
        return len(self.open) + self.handshaking < self.max_connections or self.evict()

    def evict(self) -> bool:
        """Close the connection that is idle for longest; False if none is idle."""
        idle = [(since, one) for one in self.open if (since := one.idle_since) is not None]
        if not idle:
            return False
        _, longest = min(idle, key=_idle_start)
        self.open.discard(longest)
        longest.abort()
        return True

    def expire(self, now: float) -> None:
        """Close connections that are idle for longer than the time-out."""
        for one in list(self.open):
            since = one.idle_since
            if since is not None and now - since > self._idle_timeout:
                self.open.discard(one)
                one.abort()

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self.expire(loop.time())
        self._timer = loop.call_later(min(MAX_SWEEP_INTERVAL, self._idle_timeout), self._sweep, loop)


_idle_start: Callable[[tuple[float, ServedConnection]], float] = lambda found: found[0]
