"""One stream between two pickers: each says who it is, then tells what happens, and hears what happens there.

A connection that breaks takes with it what was told over it. A picker that is stopped keeps its connections, so each sends
something at least every KEEPALIVE, and one that is silent for SILENT is taken to be stopped.
"""

import asyncio
import contextlib
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Never, Protocol

from google.protobuf.message import DecodeError
from grpc import aio

from adsum.quoting import quoted
from adsum.tasks import first_of
from epp.peers.messages.peers_pb2 import Hello, News
from epp.peers.publisher import PickPublisher
from epp.peers.subscriber import MOST_FORWARDED, MOST_MESSAGE, PeerFaultError, PickSubscriber

SERVICE: Final = "adsum.peers.v1.Peers"
METHOD: Final = "Tell"
VERSION: Final = 1
"""The version that is spoken here, and the oldest that is understood. A new field needs no new version: old pickers skip it."""
KEEPALIVE: Final = 0.2
SILENT: Final = 0.8
_LOOK: Final = 0.1
_STOOD_STILL: Final = 0.3
"""Seconds between two looks after which this process has stood still, and messages may lie unread."""
_PRESENT: Final = 100
"""Milliseconds; what a newcomer is told of the past is older."""
GREETING: Final = 2.0
"""Seconds for a peer to say who it is."""
_MOST_BYTES: Final = 16 * 1024 * 1024
"""Bytes a second that are read of one peer; what is more waits at its sender, where nothing queues."""
NAME_LENGTH: Final = 16
_ENTRY_BYTES: Final = 1024 * 1024
"""Bytes of the entries in one message, and those of one entry: a client's path and headers are in it, and may be long."""
_COLLECT: Final = 0.01
"""Seconds for which entries are collected."""
_LENGTH: Final = struct.Struct("!I")

NO_ANSWER: Final = "it did not answer"


class Duplex(Protocol):
    """A stream of messages, of either side: of gRPC, or a LocalStream."""

    async def read(self) -> Any:
        """The next message, or `aio.EOF`."""

    async def write(self, message: bytes) -> None:
        """Waits while the other side does not read."""


class LocalStream:
    """Between processes of one picker, over a Unix socket: a message costs a fifth of what it costs through grpcio."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.close = writer.close

    async def read(self) -> Any:
        """The next message, or `aio.EOF`. Raises PeerFaultError for one of more than `MOST_MESSAGE` bytes."""
        try:
            (size,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            if size > MOST_MESSAGE:
                raise PeerFaultError(f"a message of {size} bytes; expected {MOST_MESSAGE} at most")
            return await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            return aio.EOF

    async def write(self, message: bytes) -> None:
        self._writer.write(_LENGTH.pack(len(message)) + message)
        await self._writer.drain()


class PeerLink:
    """`dialed`: by this picker. `name`: of the peer, once it has said it. Times in seconds of `clock`.

    `wake`: to be set when there is something to tell. `caught_up`: set once it has told what happened before.
    """

    def __init__(
        self,
        address: str,
        publisher: PickPublisher,
        subscriber: PickSubscriber,
        clock: Callable[[], float],
        *,
        dialed: bool,
    ) -> None:
        self.address = address
        self.dialed = dialed
        self.subscriber = subscriber
        self.name = ""
        self.bytes_in = self.bytes_out = 0
        self.heard_at = clock()
        self.wake = asyncio.Event()
        self.caught_up = asyncio.Event()
        self.is_over = False
        self.on_entries: Callable[[Sequence[bytes]], None] | None = None
        """Called with entries of access logs that the peer forwards."""
        # bounded: the newest
        self._entries: deque[bytes] = deque(maxlen=MOST_FORWARDED)
        self._publisher = publisher
        self._clock = clock
        self._ended = asyncio.Event()
        self._readable_at = 0.0

    @property
    def silence(self) -> float:
        """Seconds since the peer's last message."""
        return self._clock() - self.heard_at

    def end(self) -> None:
        """Nothing that was told over it counts from now on."""
        self.is_over = True
        self.subscriber.forget()
        self._ended.set()

    def forward(self, entry: bytes) -> None:
        """Give the peer an entry of an access log about one of its picks."""
        if not self._entries:
            asyncio.get_running_loop().call_later(_COLLECT, self.wake.set)
        self._entries.append(entry)

    async def greet(self, stream: Duplex, own_name: str) -> str:
        """Returns the peer's name. Raises PeerFaultError, and TimeoutError."""
        async with asyncio.timeout(GREETING):
            await self._write(stream, _hello(own_name))
            message = await stream.read()
        self.name = _read_hello(message)
        self.heard_at = self._clock()
        return self.name

    async def converse(self, stream: Duplex) -> None:
        """Until one of both ends it. Raises PeerFaultError, and what the stream raises."""
        try:
            await first_of(self._hear(stream), self._tell(stream), self._watch(), self._until_ended())
        finally:
            if not self.is_over:
                self.end()

    async def _until_ended(self) -> None:
        await self._ended.wait()

    async def _tell(self, stream: Duplex) -> None:
        with contextlib.suppress(*BROKEN):
            await self._tell_news(stream)
        await self._ended.wait()  # whoever reads of the stream hears why it is over

    async def _tell_news(self, stream: Duplex) -> Never:
        publisher, position = self._publisher, -1
        while True:
            self.wake.clear()
            if self._entries:
                await self._write(stream, News(log_entries=self._next_entries()).SerializeToString())
            elif publisher.is_lost(position):
                parts, position = publisher.anew()
                for part in parts:
                    await self._write(stream, part)
            elif (kept := publisher.since(position)) is not None:
                age = round((self._clock() - kept.at) * 1000.0)
                await self._write(stream, News(age_ms=age).SerializeToString() + kept.data)
                position += 1
            else:
                try:
                    async with asyncio.timeout(KEEPALIVE):
                        await self.wake.wait()
                except TimeoutError:
                    await self._write(stream, b"")

    def _next_entries(self) -> list[bytes]:
        entries, size = [self._entries.popleft()], 0
        while self._entries and (size := size + len(entries[-1])) < _ENTRY_BYTES:
            entries.append(self._entries.popleft())
        return entries

    async def _write(self, stream: Duplex, message: bytes) -> None:
        await stream.write(message)
        self.bytes_out += len(message)

    async def _hear(self, stream: Duplex) -> None:
        while True:
            message = await stream.read()
            if not isinstance(message, bytes):  # aio.EOF
                return
            now = self.heard_at = self._clock()
            self.bytes_in += len(message)
            news = _read(message)
            if message and not self.is_over:
                self.subscriber.hear(news, now)
                if news.log_entries and self.on_entries is not None:
                    self.on_entries(news.log_entries)
            if not news.anew and news.age_ms < _PRESENT:
                self.caught_up.set()
            await self._pause(len(message), now)

    async def _pause(self, size: int, now: float) -> None:
        """Read no faster than that, and let others run after each message: thousands may wait to be read."""
        self._readable_at = max(self._readable_at, now - KEEPALIVE) + size / _MOST_BYTES
        await asyncio.sleep(max(0.0, self._readable_at - now))

    async def _watch(self) -> None:
        looked_at = self._clock()
        while True:
            await asyncio.sleep(_LOOK)
            now = self._clock()
            if now - looked_at > _STOOD_STILL:
                self.heard_at = now
            looked_at = now
            if now - self.heard_at > SILENT:
                raise SilentPeerError(f"it was silent for {SILENT:g} s")


class SilentPeerError(Exception):
    """It is stopped, or the network is."""


def _hello(name: str) -> bytes:
    return News(hello=Hello(version=VERSION, oldest=VERSION, name=name)).SerializeToString()


def _read(message: bytes) -> News:
    try:
        return News.FromString(message)
    except DecodeError:
        raise PeerFaultError(f"{len(message)} bytes that are no message of a picker") from None


def _read_hello(message: object) -> str:
    if not isinstance(message, bytes):
        raise PeerFaultError("the stream ended before it said who it is")
    hello = _read(message).hello
    if not hello.version:
        raise PeerFaultError("its first message does not say who it is")
    if hello.oldest > VERSION or hello.version < VERSION:
        raise PeerFaultError(
            f"it speaks version {hello.version} and understands {hello.oldest} and newer; expected version {VERSION}"
        )
    if len(hello.name) != NAME_LENGTH or not hello.name.isalnum():
        raise PeerFaultError(
            f"it calls itself {quoted(hello.name[:60])}; expected {NAME_LENGTH} letters and digits"
        )
    return hello.name


def why_lost(error: BaseException | None) -> str:
    """For the log and /status."""
    if isinstance(error, aio.AioRpcError):
        return f"{error.code().name}: {(error.details() or 'no details')[:200]}"
    if isinstance(error, TimeoutError):
        return NO_ANSWER
    return "it ended the stream" if error is None else str(error)


BROKEN: Final = (aio.AioRpcError, aio.BaseError, asyncio.InvalidStateError, OSError)
"""Errors of a connection that broke, or of a stream that is over."""
CHANNEL_OPTIONS: Final = [
    ("grpc.max_receive_message_length", MOST_MESSAGE),
    ("grpc.max_send_message_length", MOST_MESSAGE),
    ("grpc.enable_http_proxy", 0),  # peers are next to each other
    ("grpc.use_local_subchannel_pool", 1),  # otherwise a new attempt waits for the back-off of an old one
]
SERVER_OPTIONS: Final = [
    ("grpc.max_receive_message_length", MOST_MESSAGE),
    ("grpc.so_reuseport", 0),  # on Linux the default lets two processes share a port
    ("grpc.max_concurrent_streams", 8),
]
