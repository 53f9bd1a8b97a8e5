"""A TCP proxy between the client and the server of a test, with faults on demand."""

import asyncio
import socket
import struct
from contextlib import closing, suppress
from types import TracebackType
from typing import Literal, Self, TypeAlias

Mode: TypeAlias = Literal["pass", "pause", "blackhole"]


class ChaosProxy:
    """Listens on 127.0.0.1 and forwards to `upstream` (host, port). An async context manager.

    `pause`: open connections stand, nothing flows any more, and new ones are accepted likewise (half-open as seen by
    the application; the kernel still answers keepalives, so dropped packets need a network namespace: make
    test-system). `blackhole`: new connections are accepted and never served, old ones go on.
    """

    def __init__(self, upstream: tuple[str, int]) -> None:
        self.upstream = upstream
        self.port = 0
        self.accepted = 0
        self.rate: float | None = None
        """Bytes per second towards the client; None: as they come."""
        self.cut_after: int | None = None
        """Bytes towards the client after which each connection ends with a bare FIN."""
        self.ends = 0
        """Connections that end, one after another, when the client's next bytes come."""
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._mode: Mode = "pass"
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def mode(self) -> Mode:
        return self._mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        self._mode = mode
        if mode == "pause":
            self._flowing.clear()
        else:
            self._flowing.set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Close the port: new connections are refused, old ones go on."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def reset(self) -> None:
        """RST to every client."""
        for writer in self._connections.values():
            sock = writer.get_extra_info("socket")
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.refuse()
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        try:
            if self._mode == "blackhole":
                await asyncio.Event().wait()
            await self._forward(reader, writer)
        except asyncio.CancelledError:
            pass  # the proxy ends; a cancelled connection task would be logged by asyncio.streams
        finally:
            del self._connections[task]
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection(*self.upstream)
        except OSError:
            return
        tasks = [
            asyncio.create_task(self._pump(reader, up_writer, of_client=True)),
            asyncio.create_task(self._pump(up_reader, writer, self.rate, self.cut_after)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with suppress(OSError):
                writer.close()
            up_writer.transport.abort()

    async def _pump(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        rate: float | None = None,
        left: int | None = None,
        of_client: bool = False,
    ) -> None:
        with suppress(OSError):
            while chunk := await source.read(1024 if rate else 65536):
                if of_client and self.ends:
                    self.ends -= 1
                    return
                await self._flowing.wait()
                if rate is not None:
                    await asyncio.sleep(len(chunk) / rate)
                if left is not None:
                    chunk, left = chunk[:left], left - len(chunk)
                sink.write(chunk)
                await sink.drain()
                if left is not None and left <= 0:
                    return


class SynBlackHole:
    """A port on which connects neither succeed nor fail: its queue is full and nobody accepts. A context manager."""

    def __init__(self) -> None:
        self.port = 0
        self._listener = socket.socket()
        self._fillers: list[socket.socket] = []

    def __enter__(self) -> Self:
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(0)
        self.port = self._listener.getsockname()[1]
        while self._connects():
            assert len(self._fillers) < 64, "the kernel accepts without end"
        return self

    def __exit__(self, *_: object) -> None:
        for filler in (*self._fillers, self._listener):
            filler.close()

    def _connects(self) -> bool:
        filler = socket.socket()
        filler.settimeout(0.05)
        try:
            filler.connect(("127.0.0.1", self.port))
        except TimeoutError:
            with closing(filler):
                return False
        self._fillers.append(filler)
        return True
