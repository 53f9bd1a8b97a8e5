"""Serves ext_proc, endpoint discovery and health with our own HTTP/2 server: listens, and has one asyncio Protocol per connection."""

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Self

from adsum.serving.acceptor import Acceptor, Connections
from adsum.serving.sockets import connection_limit, listening_socket, set_tcp_options
from discovery.eds import CLUSTER
from discovery.eds.subscription import Publication
from epp.ext_proc.exchange import Exchange
from epp.ext_proc.outcome_ledger import OutcomeLedger
from epp.health import Health
from epp.request.body import MemoryBudget
from epp.wire.certificate import server_context
from epp.wire.http2.connection import Connection
from epp.wire.http2.frames import Http2ErrorCode
from epp.wire.http2.limits import Limits
from epp.wire.server.access_log import AccessLogReceiver
from epp.wire.server.endpoint_discovery import endpoint_methods
from epp.wire.server.grpc_call import MethodRouter, traceback_text
from epp.wire.server.health import health_methods
from epp.wire.server.processor import ExternalProcessor
from epp.wire.transport import ListenAddress, StreamEnded

log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 2048
"""Open connections on the port of ext_proc. An Envoy has one or two per worker thread."""
MAX_HEALTH_CONNECTIONS: Final = 512
SHARED_STREAMS: Final = 16
"""Streams at once that are offered on one connection to a port that several processes share: an Envoy has one connection for
each of its worker threads, and opens another one, which another process gets, only for more streams than that.
"""
IDLE_TIMEOUT: Final = 600.0
"""Seconds without a stream after which a connection is closed; the peer opens another one when it needs it."""
READ_SIZE: Final = 256 * 1024
"""Bytes per read."""
HIGH_WATER: Final = 512 * 1024
"""Bytes that wait to be sent, from which on nothing more is read from the peer."""
PREFACE_TIMEOUT: Final = 10.0
"""Seconds that a peer has to send its preface and SETTINGS."""
CLOSE_TIMEOUT: Final = 5.0
"""Seconds that a peer has to read the last bytes and to close its side of a connection."""
GOAWAY_TIMEOUT: Final = 1.0
"""Seconds between the GOAWAY that asks for no new streams and the one that refuses them, unless the peer answers the PING
sooner (RFC 9113 6.8)."""


class Http2Transport:
    def __init__(
        self,
        open_exchange: Callable[[], Exchange],
        health: Health,
        memory: MemoryBudget,
        clock: Callable[[], float],
        limits: Limits | None = None,
        stream_ended: StreamEnded | None = None,
    ) -> None:
        self._processor = ExternalProcessor(open_exchange, clock, stream_ended)
        self.assignments = Publication(CLUSTER)
        self._health = health
        self._memory = memory
        self._clock = clock
        self._limits = limits or Limits()
        self._logs: AccessLogReceiver | None = None

    def await_outcomes(self, outcomes: OutcomeLedger) -> None:
        self._processor.outcomes = outcomes
        self._logs = AccessLogReceiver(outcomes, self._clock)

    @property
    def open_streams(self) -> int:
        return len(self._processor.streams)

    @property
    def opened_at(self) -> float:
        return self._processor.opened_at

    def drain(self) -> None:
        self._processor.drain()
        self.assignments.close()
        if self._logs is not None:
            self._logs.drain()

    def listener(self, address: ListenAddress, *, processing: bool) -> "Http2Listener":
        methods = health_methods(self._health)
        if processing:
            methods |= self._processor.methods() | endpoint_methods(self.assignments, self._clock)
            methods |= {} if self._logs is None else self._logs.methods()
        loop = asyncio.get_running_loop()
        calls = MethodRouter(methods, address.max_message, self._memory, loop.call_later)
        limits = self._limits if address.handed is None else replace(self._limits, offered=SHARED_STREAMS)

        def connection(wake: Callable[[], None]) -> Connection:
            return Connection(calls.accept, limits, self._memory, wake, self._clock)

        return Http2Listener(address, connection, processing=processing)


class Http2Listener:
    """A Listener; `open_connection` gets the callback that a Connection calls when it has bytes to send.

    Without `processing` each request is answered at once: a connection with a stream that lasts is idle.
    """

    def __init__(
        self,
        address: ListenAddress,
        open_connection: Callable[[Callable[[], None]], Connection],
        *,
        processing: bool,
    ) -> None:
        self._listen_address = address
        most = MAX_CONNECTIONS if processing else MAX_HEALTH_CONNECTIONS
        self.connections = Connections(connection_limit(most), IDLE_TIMEOUT)
        self.processing = processing
        self.open_connection = open_connection
        self.port = address.port
        self.peers: set[_Peer] = set()
        self.buffer = memoryview(bytearray(READ_SIZE))
        self.draining = False
        self._empty = asyncio.Event()
        self._acceptor: Acceptor | None = None

    @property
    def address(self) -> str:
        return self._listen_address.authority(self.port)

    async def __aenter__(self) -> Self:
        address = self._listen_address
        tls = None if address.certificate is None else server_context(address.certificate, address.tls)
        try:
            listening = address.handed or listening_socket(address.host, address.port)
        except OSError as error:
            raise address.listen_error() from error
        name = f"port {listening.getsockname()[1]}"
        self._acceptor = Acceptor([listening], lambda: _Peer(self), self.connections, name=name, tls=tls)
        self._acceptor.start()
        self.port = listening.getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.drain(None)

    async def drain(self, timeout: float | None) -> None:
        if self._acceptor is None:
            return
        self.draining = True
        self._acceptor.close()
        if timeout:
            for peer in list(self.peers):
                peer.drain()
            if await self._wait_until_empty(timeout):
                return
        for peer in list(self.peers):
            peer.close()
        if not await self._wait_until_empty(GOAWAY_TIMEOUT):
            for peer in list(self.peers):
                peer.abort()
            await self._wait_until_empty(GOAWAY_TIMEOUT)

    def remove(self, peer: "_Peer") -> None:
        """Forget a connection that was lost."""
        self.peers.discard(peer)
        self.connections.open.discard(peer)
        if not self.peers:
            self._empty.set()

    async def _wait_until_empty(self, timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                while self.peers:
                    self._empty.clear()
                    await self._empty.wait()
        except TimeoutError:
            return False
        return True


class _Peer(asyncio.BufferedProtocol):
    """One socket: passes what is read to its Connection, then writes all that the Connection has to send in one call."""

    def __init__(self, listener: Http2Listener) -> None:
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._connection = listener.open_connection(self._schedule_write)
        self._unparsed_size = 0
        self._read_at = self._loop.time()
        self._blocked = False
        self._scheduled = False
        self._closing_soon = False
        self._write_closed = False
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
        peer = transport.get_extra_info("peername")  # None: it is gone already
        self._connection.streams.peer = "" if peer is None else peer[0]
        transport.set_write_buffer_limits(high=HIGH_WATER)
        self._timer = self._loop.call_later(PREFACE_TIMEOUT, self._check_preface)
        self._write()
        if self._listener.draining:
            self.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        """All peers are read into one buffer, in turns; the incomplete frame of the last read is put before the new bytes.

        A buffer that asyncio allocates for every read costs four times the read (measured).
        """
        unparsed = self._connection.unparsed
        self._unparsed_size = len(unparsed)
        self._listener.buffer[: self._unparsed_size] = unparsed
        return self._listener.buffer[self._unparsed_size :]

    def buffer_updated(self, nbytes: int) -> None:
        self._connection.unparsed = b""
        self._read_at = self._loop.time()
        if self._write_closed:
            return
        try:
            self._connection.receive(self._listener.buffer[: self._unparsed_size + nbytes])
        except Exception as error:  # noqa: BLE001  # a fault of ours ends this connection, not the picker
            log.error("a connection failed: %s\n%s", type(error).__name__, traceback_text(error))
            self._connection.fail(Http2ErrorCode.INTERNAL_ERROR, "the picker failed")
        self._write()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._connection.abort("reset")
        self._listener.remove(self)

    def pause_writing(self) -> None:
        """Stop reading from a peer that does not read: that bounds what it can make us hold."""
        self._blocked = True
        self._connection.set_blocked(True)
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._blocked = False
        self._connection.set_blocked(False)
        self._transport.resume_reading()
        self._write()

    def drain(self) -> None:
        """Let open streams end; refuse new ones once the peer has read our GOAWAY."""
        self._connection.drain()
        self._loop.call_later(GOAWAY_TIMEOUT, self._refuse_streams)
        self._write()

    def close(self) -> None:
        self._connection.close()
        self._write()
        self._close_transport()

    @property
    def idle_since(self) -> float | None:
        """When something was read last, None while a stream asks for something (adsum.serving.acceptor)."""
        return self._read_at if self._connection.idle or not self._listener.processing else None

    @property
    def proven(self) -> bool:
        return self._connection.streams.proven

    def expire(self, now: float, idle_timeout: float) -> None:
        """Reset silent streams. A connection without a stream gets a GOAWAY first: its peer may be opening one."""
        connection = self._connection
        connection.end_silent_streams()
        if not connection.streams.open and now - self._read_at > idle_timeout:
            self.drain()
        else:
            self._write()

    def abort(self) -> None:
        self._transport.abort()

    def leave(self) -> None:
        self.drain()

    def _refuse_streams(self) -> None:
        if self in self._listener.peers:
            self._connection.refuse_streams()
            self._write()

    def _schedule_write(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        self._scheduled = False
        if self._write_closed:
            return
        connection = self._connection
        while not self._blocked and (written := connection.data_to_send()):
            self._transport.write(written)
        if connection.can_close and connection.failed is None:
            self._close_transport_soon()
        elif connection.can_close:
            self._close_transport()

    def _close_transport_soon(self) -> None:
        """Give the peer time to close first: grpc's client discards unread answers when we close the connection."""
        if not self._closing_soon:
            self._closing_soon = True
            self._loop.call_later(GOAWAY_TIMEOUT, self._close_transport)

    def _close_transport(self) -> None:
        """Write the last bytes, shut down writing, and read until the peer closes its side.

        A socket that is closed with unread bytes sends a reset, and the peer may then discard what it has not read yet
        (RFC 9112 9.6 describes the same for HTTP/1.1). TLS waits for the peer's close_notify by itself.
        """
        if self._write_closed or self._transport.is_closing():
            return
        self._write_closed = True
        self._transport.write(self._connection.data_to_send())
        try:
            if self._transport.can_write_eof():
                self._transport.write_eof()
            else:
                self._transport.close()
        except OSError:  # the peer has closed the connection
            self._transport.abort()
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(CLOSE_TIMEOUT, self._transport.abort)

    def _check_preface(self) -> None:
        self._timer = None
        if not self._connection.settings_received:
            self._transport.abort()
