"""A connection without sockets, and the h2 library as its client."""

from collections.abc import Callable, Iterable
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest

from epp.ext_proc.exchange import Exchange
from epp.ext_proc.exchange_settings import ExchangeSettings
from epp.health import Health
from epp.request.body import MemoryBudget
from epp.wire.http2.connection import Connection
from epp.wire.http2.limits import Limits
from epp.wire.messages.ext_proc_pb2 import ProcessingRequest, ProcessingResponse
from epp.wire.server.grpc_call import MethodRouter
from epp.wire.server.grpc_messages import MessageReader, prefixed
from epp.wire.server.health import health_methods
from epp.wire.server.processor import ExternalProcessor

PATH = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", PATH),
    (":authority", "epp"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]


class Wired:
    """A server's Connection over a director, its clock and timers in the test's hand, and an h2 client."""

    def __init__(self, director: Any, limits: Limits | None = None, memory: int = 2**30) -> None:
        self.now = 100.0
        self.memory = MemoryBudget(memory)
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.woken = 0
        self.health = Health(lambda: self.now)
        self.processor = ExternalProcessor(
            lambda: Exchange(director, ExchangeSettings(), budget=self.memory), lambda: self.now
        )
        methods = health_methods(self.health) | self.processor.methods()
        calls = MethodRouter(methods, 4 * 1024 * 1024, self.memory, self._call_later)
        self.connection = Connection(
            calls.accept, limits or Limits(), self.memory, self._wake, lambda: self.now
        )
        config = h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        self.client = h2.connection.H2Connection(config)
        self.client.initiate_connection()
        self.events: list[h2.events.Event] = []

    def _wake(self) -> None:
        self.woken += 1

    def _call_later(self, delay: float, callback: Callable[[], None]) -> Any:
        self.timers.append((self.now + delay, callback))
        return self

    def cancel(self) -> None:
        """Of a timer: this is all of them."""
        self.timers.clear()

    def output(self) -> bytes:
        """Everything the server has to say now."""
        said = []
        while written := self.connection.data_to_send():
            said.append(written)
        return b"".join(said)

    def pump(self) -> list[h2.events.Event]:
        """Both sides talk until neither has anything to say; what the client saw."""
        seen: list[h2.events.Event] = []
        while True:
            asked = self.client.data_to_send()
            if asked:
                self.connection.receive(asked)
            told = self.output()
            if told:
                seen += self.client.receive_data(told)
            if not asked and not told:
                self.events += seen
                return seen

    def open(self, extra: Iterable[tuple[str, str]] = (), *, end_stream: bool = False) -> int:
        stream: int = self.client.get_next_available_stream_id()
        self.client.send_headers(stream, [*HEADERS, *extra], end_stream=end_stream)
        return stream

    def send(self, stream: int, *messages: ProcessingRequest, end_stream: bool = False) -> None:
        data = prefixed([message.SerializeToString() for message in messages])
        size = self.client.max_outbound_frame_size
        for start in range(0, len(data), size):
            self.client.send_data(stream, data[start : start + size])
        if end_stream:
            self.client.end_stream(stream)

    def answers(self, stream: int) -> list[ProcessingResponse]:
        """All answers that the client has seen on a stream; it takes them up."""
        reader = MessageReader(2**30)
        found = []
        for event in self.events:
            if isinstance(event, h2.events.DataReceived) and event.stream_id == stream:
                found += reader.feed(event.data)
        assert reader.buffered == 0
        return [ProcessingResponse.FromString(message) for message in found]

    def status(self, stream: int) -> str | None:
        """The grpc-status, None before there is one."""
        for event in self.events:
            if not isinstance(event, h2.events.TrailersReceived | h2.events.ResponseReceived):
                continue
            if event.stream_id == stream:
                for name, value in event.headers:
                    if name == "grpc-status":
                        return str(value)
        return None

    def resets(self) -> dict[int, int]:
        """Error code by stream."""
        seen = (event for event in self.events if isinstance(event, h2.events.StreamReset))
        return {event.stream_id: int(event.error_code) for event in seen}

    def goodbyes(self) -> list[int]:
        """The error codes of GOAWAYs."""
        seen = (event for event in self.events if isinstance(event, h2.events.ConnectionTerminated))
        return [int(event.error_code) for event in seen]


@pytest.fixture
def wired(director: Any) -> Callable[..., Wired]:
    """`wired(limits=..., memory=...)`: a connection and its client, both after their SETTINGS if they `greet`."""

    def wire(limits: Limits | None = None, memory: int = 2**30, *, greet: bool = True) -> Wired:
        pair = Wired(director, limits, memory)
        if greet:
            pair.pump()
        return pair

    return wire
