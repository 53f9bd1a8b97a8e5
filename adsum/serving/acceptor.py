"""Accepts connections within limits, evicts idle ones when there is no room, and logs each cause at most once a minute.

asyncio's own server, when it is out of descriptors, logs a traceback and schedules a retry for each `accept` of the
backlog (CPython gh-151615): 1,024 a second.
"""

import asyncio
import errno
import logging
import random
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Final, NamedTuple, Protocol

from adsum.logs import RateLimitedLog
from adsum.serving.handing import HandedSocket
from adsum.serving.sockets import SpareDescriptor

HANDSHAKE_TIMEOUT: Final = 10.0
"""Seconds for the TLS handshake."""
_HANDSHAKES: Final = 8
"""One in so many places may be taken by handshakes before they make room for each other."""
_MAX_ACCEPTS: Final = 64
"""Connections that are accepted in one iteration of the loop, before open ones are served."""
_RETRY_DELAY: Final = 0.1
"""Seconds until the next attempt after `accept` failed."""
_DESCRIPTOR_ERRNOS: Final = (errno.EMFILE, errno.ENFILE)
_NOTHING_TO_ACCEPT: Final = (BlockingIOError, InterruptedError, ConnectionAbortedError)

log = logging.getLogger(__name__)


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

    def leave(self) -> None:
        """End the connection once what runs on it has ended; its client is to open another one."""


class Connections:
    """`handshaking`: accepted connections that are not open yet, such as in a TLS handshake. They count, and have a time-out of
    their own.
    """

    def __init__(self, max_connections: int, idle_timeout: float) -> None:
        self.max_connections = max_connections
        self._idle_timeout = idle_timeout
        self.open: set[ServedConnection] = set()
        self.leaving: set[ServedConnection] = set()
        """Open connections that end once what runs on them has ended."""
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

    def staying(self) -> int:
        """How many count for the balance between processes."""
        return len(self.open - self.leaving) + self.handshaking

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

    def leave_one(self) -> None:
        """End one gently, so that another process gets what it carried."""
        self.leaving &= self.open
        staying = [one for one in self.open - self.leaving if one.proven]
        if staying:
            chosen = random.choice(staying)
            self.leaving.add(chosen)
            chosen.leave()

    def expire(self, now: float) -> None:
        """End what is idle for longer than the time-out."""
        for one in list(self.open):
            one.expire(now, self._idle_timeout)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self.expire(loop.time())
        self._timer = loop.call_later(min(MAX_SWEEP_INTERVAL, self._idle_timeout), self._sweep, loop)


class Acceptor:
    """Accepts from `start` to `close`. `name`: the port's name in the log. Open connections survive `close`."""

    def __init__(
        self,
        listening: Sequence[socket.socket],
        protocol: Callable[[], asyncio.BaseProtocol],
        connections: Connections,
        *,
        name: str,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._listening = listening
        self._protocol = protocol
        self._connections = connections
        self._name = name
        self._tls = tls
        self._spare_descriptor = SpareDescriptor()
        self._limited_log = RateLimitedLog(log)
        self._handshaking: dict[asyncio.Task[None], _Handshake] = {}
        self._waiting: set[socket.socket] = set()
        """Accepted, and its task has not begun: cancelled now, it would never close the socket."""
        self._closed = False

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._connections.start()
        for one in self._listening:
            one.setblocking(False)
            self._loop.add_reader(one, self._accept, one)
            if isinstance(one, HandedSocket):
                one.on_excess = self._connections.leave_one
                one.report(self._loop, self._connections.staying)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._connections.close()
        for one in self._listening:
            self._loop.remove_reader(one)
            one.close()
        self._spare_descriptor.close()
        for task in list(self._handshaking):
            task.cancel()
        for accepted in self._waiting:
            accepted.close()
        self._waiting.clear()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_MAX_ACCEPTS):
            if self._tls is None and self._connections.filled_by_handshakes:
                return  # they open in the loop's next iteration and can be evicted then; the backlog keeps the others
            try:
                accepted, address = listening.accept()
            except _NOTHING_TO_ACCEPT:
                return
            except OSError as error:
                if error.errno not in _DESCRIPTOR_ERRNOS or not self._free_descriptor(listening):
                    self._pause_accepting(listening, error)
                    return
                continue
            if self._admit():
                self._open_connection(_Handshake(accepted, address[0]))
            else:
                accepted.close()
                self._limited_log.warning(
                    "full", "%s: %d connections are open and none is idle, others are closed",
                    self._name, self._connections.max_connections,
                )  # fmt: skip

    def _free_descriptor(self, listening: socket.socket) -> bool:
        """Evict an idle connection, so that the next one has a descriptor; False if there was nothing to free."""
        self._limited_log.warning(
            "descriptors", "%s: no file descriptor is left, idle connections are closed", self._name
        )
        evicted = self._connections.evict()
        return self._spare_descriptor.reject_next(listening) or evicted

    def _pause_accepting(self, listening: socket.socket, error: OSError) -> None:
        self._limited_log.warning(
            "accept", "%s: connections cannot be accepted: %s", self._name, error.strerror
        )
        self._loop.remove_reader(listening)
        self._loop.call_later(_RETRY_DELAY, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        if not self._closed:
            self._loop.add_reader(listening, self._accept, listening)

    def _admit(self) -> bool:
        """Whether there is room for one more; handshakes that do not end may not take the places of open connections."""
        connections = self._connections
        if connections.full and len(self._handshaking) > connections.max_connections // _HANDSHAKES:
            self._evict_handshake()
        return connections.admit() or self._evict_handshake()

    def _evict_handshake(self) -> bool:
        """Close the oldest handshake of the address that has the most; False if there is none."""
        if not self._handshaking:
            return False
        by_address = Counter(one.address for one in self._handshaking.values())
        most = max(by_address.values())
        task, one = next(
            (task, one) for task, one in self._handshaking.items() if by_address[one.address] == most
        )
        self._connected(task)
        task.cancel()
        if one.accepted in self._waiting:
            self._waiting.discard(one.accepted)
            one.accepted.close()
        return True

    def _open_connection(self, handshake: "_Handshake") -> None:
        self._connections.handshaking += 1
        self._waiting.add(handshake.accepted)
        task = self._loop.create_task(self._connect(handshake.accepted))
        self._handshaking[task] = handshake
        task.add_done_callback(self._connected)

    def _connected(self, task: asyncio.Task[None]) -> None:
        if self._handshaking.pop(task, None) is not None:
            self._connections.handshaking -= 1

    async def _connect(self, accepted: socket.socket) -> None:
        self._waiting.discard(accepted)
        handshake = None if self._tls is None else HANDSHAKE_TIMEOUT
        try:
            accepted.setblocking(False)
            await self._loop.connect_accepted_socket(
                self._protocol, accepted, ssl=self._tls, ssl_handshake_timeout=handshake
            )
        except (OSError, TimeoutError) as error:
            # OSError includes SSLError: the peer's fault, so not a warning
            log.debug("%s: a connection failed before it began: %s", self._name, error)
            accepted.close()


class _Handshake(NamedTuple):
    accepted: socket.socket
    address: str
