"""One port for several processes: one accepts its connections, and hands each to the process that has the fewest.

SO_REUSEPORT lets the kernel choose by a hash of the addresses: of two connections both go to one of two processes every other
time, and an HTTP/2 client has few. A listening socket that processes share gives them to whoever wakes up first.
"""

import asyncio
import contextlib
import errno
import logging
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Final

from adsum.logs import RateLimitedLog

REPORT_INTERVAL: Final = 0.2
"""Seconds between two reports of a process about its connections."""
SILENT: Final = 1.0
"""Seconds without a report after which a process gets no connections: it stands still."""
_MAX_ACCEPTS: Final = 64
"""Connections that are accepted in one iteration of the loop."""
_RETRY_DELAY: Final = 0.1
_MOST_REPORTS: Final = 16
"""Reports that are read at once: of a process that this one did not read for a while."""
_CONNECTION: Final = b"c"
_EXCESS: Final = b"x"
_BALANCE_INTERVAL: Final = 1.0
"""Seconds between two looks whether a process has too many connections: so often one of them is ended."""
_REPORT: Final = struct.Struct("!IQ")
"""Connections that are open, and how many were taken so far: those that are on their way count where they go."""
_NOTHING_TO_ACCEPT: Final = (BlockingIOError, InterruptedError, ConnectionAbortedError)

log = logging.getLogger(__name__)


def _nothing() -> None:
    return


class HandedSocket(socket.socket):
    """Stands for a listening socket in a process that gets its connections from another one. `name`: what that one listens on."""

    def __init__(self, descriptor: int, name: tuple[str, int]) -> None:
        super().__init__(fileno=descriptor)
        self._name = name
        self._taken = 0
        self._timer: asyncio.TimerHandle | None = None
        self.on_excess: Callable[[], None] = _nothing
        """Called when this process has more connections than others."""

    def getsockname(self) -> tuple[str, int]:
        """The address that clients connect to."""
        return self._name

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        """The next connection. Raises as a listening socket does."""
        message, descriptors, _, _ = socket.recv_fds(self, 1, 1)
        if not message:
            raise OSError(errno.ENOTCONN, "the process that accepts connections is gone")
        if message == _EXCESS:
            self.on_excess()
            raise InterruptedError
        self._taken += 1
        if not descriptors:  # the kernel had no room for it in this process, and closed it
            raise OSError(errno.EMFILE, "no file descriptor is left")
        accepted = socket.socket(fileno=descriptors[0])
        try:
            return accepted, accepted.getpeername()
        except OSError as error:
            accepted.close()
            raise ConnectionAbortedError from error

    def report(self, loop: asyncio.AbstractEventLoop, count: Callable[[], int]) -> None:
        """Ask for connections, until it is closed; `count`: how many are open now."""
        try:
            self.send(_REPORT.pack(count(), self._taken))
        except BlockingIOError:
            pass  # it is not read: the next one says the same
        except OSError:
            return  # `accept` says it
        self._timer = loop.call_later(REPORT_INTERVAL, self.report, loop, count)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().close()


class _Process:
    """One that takes connections. `open`: those that it reported, and what it was handed since."""

    def __init__(self, place: int, connected: socket.socket) -> None:
        self.place = place
        self.socket = connected
        self.open = self.handed = 0
        self.heard_at = float("-inf")
        self.asking_since: float | None = None


class HandedPort:
    """Accepts on one port from `start` to `close`. `to_oldest`: all connections go to the process that has taken them for longest.

    A connection that no process takes is closed. Where one process has more than one connection more than another, it ends one a
    second, gently: its client opens another one.
    """

    def __init__(
        self,
        listening: Sequence[socket.socket],
        *,
        to_oldest: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listening = listening
        self._to_oldest = to_oldest
        self._clock = clock
        self.name: tuple[str, int] = listening[0].getsockname()[:2]
        # bounded: by the processes, one each
        self._processes: dict[int, _Process] = {}
        self._limited_log = RateLimitedLog(log)
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        for one in self._listening:
            one.setblocking(False)
            self._loop.add_reader(one, self._accept, one)
        if not self._to_oldest:
            self._balance()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for listening in self._listening:
            listening.close()
        for one in list(self._processes.values()):
            self._remove(one)

    def join(self, place: int) -> socket.socket:
        """A socket for the process that is about to start at this place: it inherits it, and the caller closes it then."""
        if place in self._processes:
            self._remove(self._processes[place])
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        theirs.setblocking(False)
        one = self._processes[place] = _Process(place, ours)
        self._loop.add_reader(ours, self._hear, one)
        return theirs

    def _remove(self, one: _Process) -> None:
        if self._processes.get(one.place) is one:
            del self._processes[one.place]
        self._loop.remove_reader(one.socket)
        one.socket.close()

    def _hear(self, one: _Process) -> None:
        for _ in range(_MOST_REPORTS):
            try:
                report = one.socket.recv(_REPORT.size)
            except BlockingIOError:
                return
            except OSError:
                report = b""
            if len(report) != _REPORT.size:  # it has ended, or takes no more
                self._remove(one)
                return
            there, taken = _REPORT.unpack(report)
            one.open = there + one.handed - taken
            one.heard_at = self._clock()
            if one.asking_since is None:
                one.asking_since = one.heard_at

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_MAX_ACCEPTS):
            try:
                accepted, _ = listening.accept()
            except _NOTHING_TO_ACCEPT:
                return
            except OSError as error:
                self._pause(listening, error)
                return
            with accepted:
                self._hand(accepted)

    def _hand(self, accepted: socket.socket) -> None:
        for one in self._in_order():
            try:
                socket.send_fds(one.socket, [_CONNECTION], [accepted.fileno()])
            except BlockingIOError:
                continue  # it does not read
            except OSError:
                self._remove(one)
                continue
            one.open += 1
            one.handed += 1
            return

    def _balance(self) -> None:
        """A process that came later got none of the connections that clients keep open."""
        self._timer = self._loop.call_later(_BALANCE_INTERVAL, self._balance)
        now = self._clock()
        alive = [one for one in self._in_order() if now - one.heard_at <= SILENT]
        if len(alive) > 1 and alive[-1].open > alive[0].open + 1:
            with contextlib.suppress(OSError):
                alive[-1].socket.send(_EXCESS)

    def _in_order(self) -> list[_Process]:
        """First those that were heard of lately, then those that have the fewest connections."""
        now = self._clock()
        asking = [one for one in self._processes.values() if one.asking_since is not None]
        return sorted(
            asking,
            key=lambda one: (
                now - one.heard_at > SILENT,
                one.asking_since if self._to_oldest else one.open,
                one.place,
            ),
        )

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        self._limited_log.warning(
            "accept", "port %d: connections cannot be accepted: %s", self.name[1], error.strerror
        )
        self._loop.remove_reader(listening)
        self._loop.call_later(_RETRY_DELAY, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        if not self._closed:
            self._loop.add_reader(listening, self._accept, listening)
