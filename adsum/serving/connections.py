"""Limits the open connections of one port: evicts an idle one for a new one, closes those idle for too long."""

import asyncio
from operator import itemgetter
from typing import Final, Protocol

MAX_SWEEP_INTERVAL: Final = 5.0
"""Upper bound of the seconds between two checks for idle connections."""


class ServedConnection(Protocol):
    """A connection that may be closed when it is idle."""

    @property
    def idle_since(self) -> float | None:
        """On the loop's clock; None while a request runs and its answer is read."""

    @property
    def proven(self) -> bool:
        """Whether it had a request answered, and reads its answers."""

    def expire(self, now: float, idle_timeout: float) -> None:
        """End the connection, or a part of it, that is idle for too long."""

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
        return self.handshaking > 0 and self.full

    @property
    def full(self) -> bool:
        return len(self.open) + self.handshaking >= self.max_connections

    def admit(self) -> bool:
        """Whether there is room for one more connection; evicts an idle one if necessary."""
        return not self.full or self.evict()

    def evict(self) -> bool:
        """Close the connection that is idle for longest; False if none is idle.

        Proven ones go last: strangers that connect again and again evict each other.
        """
        idle = [(one.proven, since, one) for one in self.open if (since := one.idle_since) is not None]
        if not idle:
            return False
        *_, longest = min(idle, key=itemgetter(0, 1))
        self.open.discard(longest)
        longest.abort()
        return True

    def expire(self, now: float) -> None:
        """End what is idle for longer than the time-out."""
        for one in list(self.open):
            one.expire(now, self._idle_timeout)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self.expire(loop.time())
        self._timer = loop.call_later(min(MAX_SWEEP_INTERVAL, self._idle_timeout), self._sweep, loop)
