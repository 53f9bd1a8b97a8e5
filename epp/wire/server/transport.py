"""ext_proc and health over our own HTTP/2 server: asyncio's side of it, one Protocol per connection."""

import asyncio
import logging
import ssl
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from epp.ext_proc.exchange import Exchange
from epp.health import Health
from epp.request.body import MemoryBudget
from epp.wire.http2.connection import Connection
from epp.wire.http2.frames import Http2ErrorCode
from epp.wire.http2.limits import Limits
from epp.wire.server.grpc_call import Methods, frames
from epp.wire.server.health import health_methods
from epp.wire.server.processor import ExternalProcessor
from epp.wire.server.tls import server_context
from epp.wire.transport import ListenAddress
from runtime.serving.acceptor import Acceptor
from runtime.serving.connections import Connections
from runtime.serving.descriptors import connection_limit
from runtime.serving.sockets import listening_socket, set_tcp_options

log = logging.getLogger(__name__)

CONNECTIONS: Final = 2048
"""Open at once on the port that picks; a data plane has one or two for each of its threads."""
HEALTH_CONNECTIONS: Final = 512
IDLE: Final = 600.0
"""Seconds without a stream. Whoever comes back opens another connection."""
READ_SIZE: Final = 256 * 1024
"""Bytes that are read at once."""
HIGH_WATER: Final = 512 * 1024
"""Bytes written and not read by the peer from which on it is not read either."""
GREETING: Final = 10.0
"""Seconds that a peer has for its preface."""
LAST_WORDS: Final = 5.0
"""Seconds that a peer has to read what is left when a connection ends."""
ANNOUNCED: Final = 1.0
"""Seconds between the GOAWAY that asks for no more streams and the one that takes none, unless the peer answers sooner."""


class Http2Transport:
    def __init__(
        self,
        open_exchange: Callable[[], Exchange],
        health: Health,
        memory: MemoryBudget,
        clock: Callable[[], float],
        limits: Limits | None = None,
    ) -> None:
        self._processor = ExternalProcessor(open_exchange, clock)
        self._health = health
        self._memory = memory
        self._clock = clock
        self._limits = limits or Limits()

    @property
    def open_streams(self) -> int:
        return len(self._processor.streams)

    @property
    def opened_at(self) -> float:
        return self._processor.opened_at

    def drain(self) -> None:
        self._processor.drain()

    def listener(self, place: ListenAddress, *, processing: bool) -> "Http2Listener":
        methods = health_methods(self._health)
        if processing:
            methods |= self._processor.methods()
        loop = asyncio.get_running_loop()
        calls = Methods(methods, place.max_message, self._memory, loop.call_later)

        def connection(wake: Callable[[], None]) -> Connection:
            return Connection(calls.accept, self._limits, self._memory, wake, self._clock)

        return Http2Listener(place, connection, CONNECTIONS if processing else HEALTH_CONNECTIONS)


class Http2Listener:
    """See Listener; `open_connection` is given what to call when a connection has something to write."""

    def __init__(
        self, place: ListenAddress, open_connection: Callable[[Callable[[], None]], Connection], most: int
    ) -> None:
        self._place = place
        self.connections = Connections(connection_limit(most), IDLE)
        self.open_connection = open_connection
        self.port = place.port
        self.peers: set[_Peer] = set()
        self.buffer = memoryview(bytearray(READ_SIZE))
        self.draining = False
        self._empty = asyncio.Event()
        self._acceptor: Acceptor | None = None

    @property
    def address(self) -> str:
        return self._place.address(self.port)

    async def __aenter__(self) -> Self:
        place = self._place
        tls = (
            None
            if place.certificate is None
            else server_context(place.certificate, place.client_ca, place.tls)
        )
        try:
            listening = listening_socket(place.host, place.port)
        except OSError as error:
            raise place.refused() from error
        name = f"port {listening.getsockname()[1]}"
        self._acceptor = Acceptor([listening], lambda: _Peer(self), self.connections, name=name, tls=tls)
        self._acceptor.start()
        self.port = listening.getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.drain(None)

    async def drain(self, timeout: float | None) -> None:
        if self._acceptor is None:
            return
        self.draining = True
        self._acceptor.close()
        if timeout:
            for peer in list(self.peers):
                peer.drain()
            if await self._emptied(timeout):
                return
        for peer in list(self.peers):
            peer.close()
        if not await self._emptied(ANNOUNCED):
            for peer in list(self.peers):
                peer.abort()
            await self._emptied(ANNOUNCED)

    def gone(self, peer: "_Peer") -> None:
        """Of a connection that was lost."""
        self.peers.discard(peer)
        self.connections.open.discard(peer)
        if not self.peers:
            self._empty.set()

    async def _emptied(self, within: float) -> bool:
        try:
            async with asyncio.timeout(within):
                while self.peers:
                    self._empty.clear()
                    await self._empty.wait()
        except TimeoutError:
            return False
        return True


class _Peer(asyncio.BufferedProtocol):
    """One connection: what is read goes to a Connection, what that has to say is written at once, all of it together."""

    def __init__(self, listener: Http2Listener) -> None:
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._connection = listener.open_connection(self._soon)
        self._ahead = 0
        self._read_at = self._loop.time()
        self._blocked = False
        self._scheduled = False
        self._expected_to_go = False
        self._ended = False
        """We say nothing more."""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  # what create_server gives
        self._transport = transport
        self._listener.peers.add(self)
        self._listener.connections.open.add(self)
        tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            transport.abort()
            return
        set_tcp_options(transport.get_extra_info("socket"))
        transport.set_write_buffer_limits(high=HIGH_WATER)
        self._timer = self._loop.call_later(GREETING, self._greet_or_go)
        self._write()
        if self._listener.draining:
            self.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        """All peers are read into one buffer, one after the other; what is no whole frame yet stands before the rest.

        A buffer that asyncio makes for every read costs four times the read (measured).
        """
        rest = self._connection.rest
        self._ahead = len(rest)
        self._listener.buffer[: self._ahead] = rest
        return self._listener.buffer[self._ahead :]

    def buffer_updated(self, nbytes: int) -> None:
        self._connection.rest = b""
        self._read_at = self._loop.time()
        if self._ended:
            return
        try:
            self._connection.receive(self._listener.buffer[: self._ahead + nbytes])
        except Exception as error:  # noqa: BLE001  # the edge: a fault of ours ends this connection, not the picker
            log.error("a connection failed: %s\n%s", type(error).__name__, frames(error))
            self._connection.fail(Http2ErrorCode.INTERNAL_ERROR, "the picker failed")
        self._write()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._connection.lose("reset")
        self._listener.gone(self)

    def pause_writing(self) -> None:
        """A peer that does not read is not read: what it could make us hold is bounded by what is under way."""
        self._blocked = True
        self._connection.block(True)
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._blocked = False
        self._connection.block(False)
        self._transport.resume_reading()
        self._write()

    def drain(self) -> None:
        """Let what is under way end, take no new streams once the peer has heard it."""
        self._connection.drain()
        self._loop.call_later(ANNOUNCED, self._refuse_streams)
        self._write()

    def close(self) -> None:
        self._connection.close()
        self._write()
        self._close_transport()

    @property
    def idle_since(self) -> float | None:
        """See runtime.serving: without a stream, since something was read last."""
        return None if self._connection.streams.open else self._read_at

    def abort(self) -> None:
        """At once, whatever is not written."""
        self._transport.abort()

    def _refuse_streams(self) -> None:
        if self in self._listener.peers:
            self._connection.refuse_streams()
            self._write()

    def _soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        self._scheduled = False
        if self._ended:
            return
        connection = self._connection
        while not self._blocked and (written := connection.take()):
            self._transport.write(written)
        if connection.over and connection.failed is None:
            self._close_transport_soon()
        elif connection.over:
            self._close_transport()

    def _close_transport_soon(self) -> None:
        """A peer that has read a GOAWAY goes by itself. One that is closed upon may throw away what it has not looked at,
        as grpc's client does.
        """
        if not self._expected_to_go:
            self._expected_to_go = True
            self._loop.call_later(ANNOUNCED, self._close_transport)

    def _close_transport(self) -> None:
        """Say what is left and that it was all, then read until the peer has done so too.

        A socket that is closed while something is unread is reset, and a peer that is told so by a write of its own may
        throw away what it had not read yet. TLS waits for the peer's close_notify by itself.
        """
        if self._ended or self._transport.is_closing():
            return
        self._ended = True
        self._transport.write(self._connection.take())
        try:
            if self._transport.can_write_eof():
                self._transport.write_eof()
            else:
                self._transport.close()
        except OSError:  # the peer is gone
            self._transport.abort()
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(LAST_WORDS, self._transport.abort)

    def _greet_or_go(self) -> None:
        self._timer = None
        if not self._connection.greeted:
            self._transport.abort()
