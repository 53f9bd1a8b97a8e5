"""`python -m benchmarks.picking.load_generator`: runs one load per line of JSON on standard input, prints its summary.

A line has the fields of `Load`. A separate process, so that it has its own core.
"""

import json
import selectors
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from benchmarks.picking.ext_proc_client import ProcessingClient
from benchmarks.picking.ext_proc_messages import stream_template
from benchmarks.picking.http_client import PostingClient
from benchmarks.picking.tally import Client, Tally

_GRACE = 20.0
"""Seconds in which what is under way must end."""


@dataclass(frozen=True, slots=True)
class Load:
    """For `seconds`, or until there were `count`: `connections`, each with `many` requests of `body` bytes at once.

    `kind` "streams": ext_proc, `chunks` of each response shown to the picker; "posts": HTTP/1.1, one at a time.
    `first`: the number of the first request. `rewritten`: streams ask for another model to serve.
    """

    port: int
    kind: str
    body: int
    connections: int = 1
    many: int = 1
    chunks: int = 0
    seconds: float = 1.0
    count: int = 0
    first: int = 0
    rewritten: bool = False

    @property
    def line(self) -> str:
        """Returns the line of JSON for the generator process."""
        return json.dumps(asdict(self)) + "\n"


class _Socket:
    """Moves bytes between a client and its socket. `make`: the client of each connection; a picker may ask for another one."""

    def __init__(self, make: Callable[[], Client], port: int, selector: selectors.BaseSelector) -> None:
        self._make, self._port, self._selector = make, port, selector
        self._connect()

    def _connect(self) -> None:
        selector = self._selector
        self.client = self._make()
        self._socket = socket.create_connection(("127.0.0.1", self._port))
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unsent = memoryview(b"")
        self._events = selectors.EVENT_READ
        selector.register(self._socket, self._events, self)

    def serve(self, ready: int) -> None:
        """Reads or writes as the selector reports; raises ConnectionError when the peer has closed."""
        if ready & selectors.EVENT_READ:
            data = self._socket.recv(1 << 18)
            if data:
                self.client.receive(data)
            elif not self._is_left:
                raise ConnectionError("the connection was closed")
        if self._is_left:
            stopping = self.client.stopping
            self.flush()
            self.close()
            self._connect()
            self.client.stopping = stopping
        self.flush()

    @property
    def _is_left(self) -> bool:
        return self.client.leaving and not self.client.under_way

    def flush(self) -> None:
        """Writes what the socket accepts; registers for writability if bytes remain."""
        while self._unsent or (written := self.client.next_bytes()):
            try:
                self._unsent = self._unsent or memoryview(written)
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
            except BlockingIOError:
                break
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        if events != self._events:
            self._events = events
            self._selector.modify(self._socket, events, self)

    def close(self) -> None:
        self._selector.unregister(self._socket)
        self._socket.close()


def _client(load: Load, tally: Tally) -> Callable[[], Client]:
    if load.kind == "posts":
        return lambda: PostingClient(load.body, tally)
    said = stream_template(load.body, load.chunks, rewritten=load.rewritten)
    return lambda: ProcessingClient(said, load.many, tally)


def make(load: Load) -> Tally:
    """Runs the load; raises TimeoutError when requests under way do not end."""
    tally = Tally(numbers=load.first)
    client = _client(load, tally)
    with selectors.DefaultSelector() as selector:
        sockets = [_Socket(client, load.port, selector) for _ in range(load.connections)]
        ends = time.perf_counter() + load.seconds
        for one in sockets:
            one.flush()
        while any(not one.client.stopping or one.client.under_way for one in sockets):
            for key, ready in selector.select(0.1):
                key.data.serve(ready)
            now = time.perf_counter()
            if now > ends + _GRACE and not load.count:
                raise TimeoutError(f"requests did not end: {load}")
            if (load.count and tally.numbers - load.first >= load.count) or (not load.count and now > ends):
                for one in sockets:
                    one.client.stopping = True
        for one in sockets:
            one.flush()
            one.close()
    return tally


def main() -> None:
    """Serves until standard input ends."""
    for line in sys.stdin:
        load = Load(**json.loads(line))
        started = time.perf_counter()
        tally = make(load)
        print(json.dumps(tally.summary(time.perf_counter() - started)), flush=True)


if __name__ == "__main__":
    main()
