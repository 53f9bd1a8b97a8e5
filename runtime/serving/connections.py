"""The open connections of one port: so many at most, none idle for too long, and an idle one makes room."""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

SWEEP: Final = 5.0
"""Seconds between two looks for what is idle for too long, at most."""


class ServedConnection(Protocol):
    """What may be closed when it is idle."""

    @property
    def idle_since(self) -> float | None:
        """In the loop's seconds; None while something is under way."""

    def abort(self) -> None: ...


class Connections:
    """`arriving`: accepted connections that are not open yet, such as in a TLS handshake. They count, and have a time-out of their own."""

    def __init__(self, most: int, idle_timeout: float) -> None:
        self.most = most
        self._idle_timeout = idle_timeout
        self.open: set[ServedConnection] = set()
        self.arriving = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look for what is idle from now on."""
        self._again(asyncio.get_running_loop())

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def filled_by_arriving(self) -> bool:
        """Whether there is no room because of connections that will be open in a moment."""
        return self.arriving > 0 and len(self.open) + self.arriving >= self.most

    def admit(self) -> bool:
        """Whether there is room for one more; the one that is idle for longest goes where that makes it."""
        return len(self.open) + self.arriving < self.most or self.evict()

    def evict(self) -> bool:
        """Close the one that is idle for longest; False where none is."""
        idle = [(since, one) for one in self.open if (since := one.idle_since) is not None]
        if not idle:
            return False
        _, longest = min(idle, key=_since)
        self.open.discard(longest)
        longest.abort()
        return True

    def expire(self, now: float) -> None:
        """Close those that are idle for too long."""
        for one in list(self.open):
            since = one.idle_since
            if since is not None and now - since > self._idle_timeout:
                self.open.discard(one)
                one.abort()

    def _again(self, loop: asyncio.AbstractEventLoop) -> None:
        self.expire(loop.time())
        self._timer = loop.call_later(min(SWEEP, self._idle_timeout), self._again, loop)


_since: Callable[[tuple[float, ServedConnection]], float] = lambda found: found[0]
