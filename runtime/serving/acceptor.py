"""Accepts connections: asyncio's own loop writes a traceback for each one that finds no descriptor, 1,024 a second."""

import asyncio
import errno
import logging
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Final

from runtime.serving.connections import Connections
from runtime.serving.descriptors import Spare

HANDSHAKE: Final = 10.0
"""Seconds for TLS."""
_AT_ONCE: Final = 64
"""Connections that are accepted before others are served again."""
_PAUSE: Final = 0.1
"""Seconds until another attempt, where nothing can be accepted."""
_NONE_LEFT: Final = (errno.EMFILE, errno.ENFILE)
_GONE: Final = (BlockingIOError, InterruptedError, ConnectionAbortedError)

log = logging.getLogger(__name__)


class Acceptor:
    """From `start` to `stop`; `name` is the port's in the log. What is open when it stops stays open."""

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
        self._spare = Spare()
        self._said = Repeated(log)
        self._arriving: set[asyncio.Task[None]] = set()
        self._closed = False

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._connections.start()
        for one in self._listening:
            one.setblocking(False)
            self._loop.add_reader(one, self._accept, one)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._connections.close()
        for one in self._listening:
            self._loop.remove_reader(one)
            one.close()
        self._spare.close()
        for task in list(self._arriving):
            task.cancel()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            if self._tls is None and self._connections.filled_by_arriving:
                return  # they open in the loop's next turn and can be evicted then; the backlog keeps the others
            try:
                accepted, _ = listening.accept()
            except _GONE:
                return
            except OSError as error:
                if error.errno not in _NONE_LEFT or not self._without_descriptor(listening):
                    self._pause(listening, error)
                    return
                continue
            if self._connections.admit():
                self._take(accepted)
            else:
                accepted.close()
                self._said.warning(
                    "full", "%s: %d connections are open and none is idle, others are closed",
                    self._name, self._connections.most,
                )  # fmt: skip

    def _without_descriptor(self, listening: socket.socket) -> bool:
        """Whoever is idle goes, so that the next one finds a place."""
        self._said.warning(
            "descriptors", "%s: no file descriptor is left, idle connections are closed", self._name
        )
        evicted = self._connections.evict()
        return self._spare.turn_away(listening) or evicted

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        self._said.warning("accept", "%s: connections cannot be accepted: %s", self._name, error.strerror)
        self._loop.remove_reader(listening)
        self._loop.call_later(_PAUSE, self._go_on, listening)

    def _go_on(self, listening: socket.socket) -> None:
        if not self._closed:
            self._loop.add_reader(listening, self._accept, listening)

    def _take(self, accepted: socket.socket) -> None:
        self._connections.arriving += 1
        task = self._loop.create_task(self._connect(accepted))
        self._arriving.add(task)
        task.add_done_callback(self._arrived)

    def _arrived(self, task: asyncio.Task[None]) -> None:
        self._connections.arriving -= 1
        self._arriving.discard(task)

    async def _connect(self, accepted: socket.socket) -> None:
        handshake = None if self._tls is None else HANDSHAKE
        try:
            accepted.setblocking(False)
            await self._loop.connect_accepted_socket(
                self._protocol, accepted, ssl=self._tls, ssl_handshake_timeout=handshake
            )
        except (OSError, TimeoutError) as error:  # an SSLError is one: the peer's doing
            log.debug("%s: a connection failed before it began: %s", self._name, error)
            accepted.close()


EVERY: Final = 60.0
"""Seconds between two lines of one cause."""


class Repeated:
    """Says each cause once a minute, with how often it came meanwhile. A cause is a word of ours, never foreign text."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._said_at: dict[str, float] = {}
        self._unsaid: dict[str, int] = {}

    def warning(self, cause: str, message: str, *arguments: object) -> None:
        now = self._clock()
        said_at = self._said_at.get(cause)
        if said_at is not None and now - said_at < EVERY:
            self._unsaid[cause] = self._unsaid.get(cause, 0) + 1
            return
        self._said_at[cause] = now
        unsaid = self._unsaid.pop(cause, 0)
        if unsaid:
            self._log.warning(f"{message}; %d times more since that was said last", *arguments, unsaid)
        else:
            self._log.warning(message, *arguments)
