import asyncio
import datetime
import logging
import random
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from grpc import StatusCode, aio

from adsum.serving.sockets import ListenError
from epp.config.settings import TransportKind
from epp.ext_proc.access_log_entry import ACCESS_LOG
from epp.ext_proc.exchange import Exchange
from epp.ext_proc.exchange_settings import ExchangeSettings
from epp.ext_proc.outcome_ledger import OutcomeLedger
from epp.ext_proc.protocol import EXT_PROC
from epp.health import Health
from epp.request.body import MemoryBudget
from epp.request.rejection import Rejection
from epp.wire import certificate
from epp.wire.certificate import Certificate
from epp.wire.messages.ext_proc_pb2 import ProcessingRequest, ProcessingResponse
from epp.wire.messages.health_pb2 import HealthCheckRequest, HealthCheckResponse
from epp.wire.opening import open_transport
from epp.wire.transport import ListenAddress, Listener, Transport
from tests.epp.ext_proc.test_outcome_ledger import entry
from tests.epp.ext_proc.test_outcome_ledger import message as log_message
from tests.epp.local_picker import health_over
from tests.eventually import eventually
from tests.free_port import free_port

METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"


class Served:
    """A picker's port over one transport, and a client's channel to it."""

    def __init__(self, kind: TransportKind, director: Any) -> None:
        self.budget = MemoryBudget(1_000_000)
        self.most = 0
        self.director = director
        self.transport = open_transport(kind, self._exchange, Health(), self.budget, time.monotonic)
        self.listener = self.transport.listener(ListenAddress("127.0.0.1", 0), processing=True)
        self.channel: aio.Channel

    def _exchange(self) -> Exchange:
        return Exchange(self, ExchangeSettings(), budget=self.budget)

    def direct(self, *request: Any) -> Any:
        self.most = max(self.most, self.budget.held)
        return self.director.direct(*request)

    @property
    def picks(self) -> Any:
        return self.director.picks

    def stream(self, **how: Any) -> Any:
        call = self.channel.stream_stream(
            METHOD,
            request_serializer=ProcessingRequest.SerializeToString,
            response_deserializer=ProcessingResponse.FromString,
        )
        return call(**how)


@pytest.fixture(params=list(TransportKind))
async def served(request: pytest.FixtureRequest, director: Any) -> AsyncIterator[Served]:
    served = Served(request.param, director)
    async with served.listener:
        served.channel = aio.insecure_channel(served.listener.address)
        yield served
        await served.channel.close()


async def routed(stream: Any, messages: Any) -> ProcessingResponse:
    await stream.write(messages.headers(end_of_stream=True))
    answer: ProcessingResponse = await stream.read()
    return answer


async def test_a_whole_conversation(served: Served, director: Any, messages: Any) -> None:
    stream = served.stream()
    body = bytes(200_000)
    for message in (messages.headers(), messages.body(body, end_of_stream=False)):
        await stream.write(message)
    await stream.write(messages.body(b"", end_of_stream=True))
    answers = [await stream.read() for _ in range(5)]
    assert [answer.WhichOneof("response") for answer in answers] == ["request_headers"] + ["request_body"] * 4
    await stream.write(messages.response_headers())
    assert (await stream.read()).HasField("response_headers")
    assert director.released == []
    await stream.done_writing()
    assert await stream.code() is grpc.StatusCode.OK
    await eventually(lambda: director.released == [director.outcome])
    assert served.transport.open_streams == 0


@pytest.mark.parametrize("responded", [False, True])
async def test_a_reset_is_a_normal_end(
    served: Served, director: Any, messages: Any, caplog: pytest.LogCaptureFixture, responded: bool
) -> None:
    caplog.set_level(logging.DEBUG, "epp")
    stream = served.stream()
    await routed(stream, messages)
    if responded:
        await stream.write(messages.response_headers())
        await stream.read()
    stream.cancel()
    await eventually(lambda: director.released == [director.outcome])
    await eventually(lambda: served.transport.open_streams == 0)
    assert caplog.records == []


async def test_a_rejection_is_an_answer(served: Served, director: Any, messages: Any) -> None:
    director.outcome = Rejection(429, "saturated", "later", retry_after=1)
    stream = served.stream()
    assert (await routed(stream, messages)).immediate_response.status.code == 429
    await stream.done_writing()
    assert await stream.code() is grpc.StatusCode.OK


async def test_a_fault_ends_its_stream_only(
    served: Served, director: Any, messages: Any, caplog: pytest.LogCaptureFixture
) -> None:
    good = director.outcome
    director.outcome = ZeroDivisionError("secret prompt")
    stream = served.stream()
    await stream.write(messages.headers(end_of_stream=True))
    assert await stream.code() is grpc.StatusCode.INTERNAL
    assert await stream.details() == "the director failed: ZeroDivisionError"
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "conftest.py" in caplog.text
    assert "secret" not in caplog.text
    director.outcome = good
    assert (await routed(served.stream(), messages)).HasField("request_headers")


async def test_a_header_that_cannot_be_read_ends_its_stream_and_fills_no_log(
    served: Served, messages: Any, caplog: pytest.LogCaptureFixture
) -> None:
    broken = messages.headers()
    broken.request_headers.headers.headers.append(b"\x0a\x01\xff")  # a name that is not UTF-8
    stream = served.stream()
    await stream.write(broken)
    assert await stream.code() is grpc.StatusCode.INTERNAL
    assert "a header that cannot be read" in (await stream.details() or "")
    assert not caplog.records
    assert (await routed(served.stream(), messages)).HasField("request_headers")


async def test_messages_out_of_order_fill_no_log(
    served: Served, messages: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        stream = served.stream()
        await stream.write(messages.body(b"first", end_of_stream=True))
        assert await stream.code() is grpc.StatusCode.INTERNAL
        assert "expected request_header_mode: SEND" in await stream.details()
    (said,) = [record for record in caplog.records if record.name.startswith("epp")]
    assert "expected request_header_mode: SEND" in said.getMessage()
    assert "File " not in said.getMessage()


async def test_after_the_response_headers_even_a_fault_ends_ok(
    served: Served, director: Any, messages: Any
) -> None:
    stream = served.stream()
    await routed(stream, messages)
    await stream.write(messages.response_headers())
    await stream.read()
    await stream.write(messages.headers())  # out of order
    assert await stream.code() is grpc.StatusCode.OK


async def test_drain_ends_answered_streams_and_lets_the_others_finish(
    served: Served, director: Any, messages: Any
) -> None:
    answered, under_way = served.stream(), served.stream()
    await routed(answered, messages)
    await answered.write(messages.response_headers())
    await answered.read()
    await routed(under_way, messages)
    served.transport.drain()
    stopping = asyncio.create_task(served.listener.drain(90))
    assert await answered.code() is grpc.StatusCode.OK
    await under_way.write(messages.response_headers())
    assert (await under_way.read()).HasField("response_headers")
    assert await under_way.code() is grpc.StatusCode.OK
    async with asyncio.timeout(90):
        await stopping
    assert len(director.released) == 2


class Later:
    """A deferral that the test settles."""

    settle: Any = None
    abandoned = False

    def subscribe(self, settle: Any) -> None:
        self.settle = settle

    def abandon(self, now: float) -> None:
        self.abandoned = True


async def test_a_deferred_pick_is_sent_when_it_comes(
    served: Served, director: Any, messages: Any, picking: Any
) -> None:
    director.outcome = later = Later()
    stream = served.stream()
    await stream.write(messages.headers())
    await stream.write(messages.body(b"abc", end_of_stream=True))
    await eventually(lambda: later.settle)
    later.settle(picking("10.0.0.7:8000"), 0)
    assert (await stream.read()).HasField("request_headers")
    assert (await stream.read()).HasField("request_body")
    await stream.write(messages.response_headers())
    assert (await stream.read()).HasField("response_headers")


async def test_a_deferred_fault_is_internal(served: Served, director: Any, messages: Any) -> None:
    director.outcome = later = Later()
    stream = served.stream()
    await stream.write(messages.headers(end_of_stream=True))
    await eventually(lambda: later.settle)
    later.settle(ZeroDivisionError(), 0)
    assert await stream.code() is grpc.StatusCode.INTERNAL


async def test_a_body_that_is_written_back_counts_no_more(
    served: Served, director: Any, messages: Any
) -> None:
    stream = served.stream()
    await stream.write(messages.headers())
    await stream.write(messages.body(bytes(1000), end_of_stream=True))
    for _ in range(2):
        await stream.read()
    await eventually(lambda: served.budget.held == 0)
    assert director.released == []
    assert served.most == 1000
    stream.cancel()


async def test_gzip_messages_are_read(served: Served, director: Any, messages: Any) -> None:
    stream = served.stream(compression=grpc.Compression.Gzip)
    zeros, noise = bytes(150_000), random.Random(0).randbytes(3_000)  # what does not shrink is sent as it is
    await stream.write(messages.headers())
    for piece in (zeros, noise, zeros):
        await stream.write(messages.body(piece, end_of_stream=False))
    await stream.write(messages.body(b"", end_of_stream=True))
    assert (await stream.read()).HasField("request_headers")
    echoed = b""
    while len(echoed) < 303_000:
        echoed += (await stream.read()).request_body.response.body_mutation.streamed_response.body
    assert echoed == zeros + noise + zeros
    await stream.done_writing()
    assert await stream.code() is grpc.StatusCode.OK
    await eventually(lambda: served.budget.held == 0)


async def test_what_a_gzip_message_becomes_is_bounded(served: Served, messages: Any) -> None:
    stream = served.stream(compression=grpc.Compression.Gzip)
    await stream.write(messages.headers())
    await stream.write(messages.body(bytes(5 * 1024 * 1024), end_of_stream=True))
    assert await stream.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await routed(served.stream(), messages)).HasField("request_headers")


class Logged:
    def __init__(self, transport: Transport, ledger: OutcomeLedger, channel: aio.Channel) -> None:
        self.transport, self.ledger = transport, ledger
        self.open_log = channel.stream_unary(f"/{ACCESS_LOG}/StreamAccessLogs")
        self.process = channel.stream_stream(f"/{EXT_PROC}/Process")


@pytest.fixture(params=list(TransportKind))
async def logged(request: pytest.FixtureRequest, director: Any) -> AsyncIterator[Logged]:
    ledger = OutcomeLedger("0123456789abcdef")
    memory = MemoryBudget(10**8)

    def exchange() -> Exchange:
        return Exchange(director, ExchangeSettings(), budget=memory)

    transport = open_transport(request.param, exchange, Health(), memory, time.monotonic)
    transport.await_outcomes(ledger)
    listener = transport.listener(ListenAddress("127.0.0.1", 0), processing=True)
    async with listener, aio.insecure_channel(listener.address) as channel:
        yield Logged(transport, ledger, channel)


async def pick(logged: Logged, messages: Any, *headers: tuple[str, str]) -> ProcessingResponse:
    stream = logged.process(metadata=headers)
    await stream.write(messages.headers(end_of_stream=True).SerializeToString())
    answer = ProcessingResponse.FromString(await stream.read())
    stream.cancel()
    return answer


async def test_a_log_tells_what_became_of_a_pick(logged: Logged, director: Any, messages: Any) -> None:
    await pick(logged, messages, ("x-adsum-outcomes", "access-log"))
    await eventually(lambda: logged.transport.open_streams == 0)
    assert (director.released, len(logged.ledger)) == ([], 1)
    log = logged.open_log()
    # the first message has Envoy's node, which is large
    await log.write(b"\x0a\x82\xe0\x03\x0a" + b"\xfe\xdf\x03" + bytes(0xEFFE))
    await log.write(log_message(entry("another"), entry(director.outcome.token)))
    await eventually(lambda: director.released)
    assert logged.ledger.logs == 1
    await log.done_writing()
    assert await log == b""
    await eventually(lambda: logged.ledger.logs == 0)


@pytest.mark.parametrize("headers", [(), (("x-adsum-outcomes", "ext-proc"),)])
async def test_a_stream_that_says_nothing_of_a_log_releases_at_its_end(
    logged: Logged, director: Any, messages: Any, headers: Any
) -> None:
    await pick(logged, messages, *headers)
    await eventually(lambda: director.released)
    assert not logged.ledger.used


async def test_a_message_that_is_no_log_ends_the_stream(logged: Logged) -> None:
    log = logged.open_log()
    await log.write(b"\xff\xff")
    assert await log.code() is StatusCode.INTERNAL
    assert "StreamAccessLogsMessage" in await log.details()


async def test_a_drain_ends_the_logs(logged: Logged) -> None:
    log = logged.open_log()
    await log.write(log_message())
    await eventually(lambda: logged.ledger.logs == 1)
    logged.transport.drain()
    assert await log.code() is StatusCode.UNAVAILABLE
    again = logged.open_log()
    await again.write(log_message())
    assert await again.code() is StatusCode.UNAVAILABLE


Listening = Callable[..., Listener]


@pytest.fixture(params=list(TransportKind))
async def listener(request: pytest.FixtureRequest) -> Listening:
    """`listener(host, port, secure=...)`: health alone, on one port."""

    def open_listener(host: str = "127.0.0.1", port: int = 0, *, secure: bool = False) -> Listener:
        pair = Certificate(certificate.self_signed(datetime.datetime.now(datetime.UTC))) if secure else None
        transport = open_transport(request.param, pytest.fail, Health(), MemoryBudget(1000), time.monotonic)
        return transport.listener(ListenAddress(host, port, pair), processing=False)

    return open_listener


async def check(address: str) -> int:
    async with aio.insecure_channel(address) as channel:
        answer: HealthCheckResponse = await health_over(channel)(HealthCheckRequest(service="liveness"))
        return answer.status


async def test_port_0_is_a_free_one(listener: Listening) -> None:
    async with listener() as one, listener() as other:
        assert 0 not in (one.port, other.port)
        assert one.port != other.port
        assert await check(one.address) == HealthCheckResponse.SERVING
        assert one.address == f"127.0.0.1:{one.port}"


@pytest.mark.parametrize("secure", [True, False])
async def test_a_taken_port_is_named(listener: Listening, secure: bool) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=f"cannot listen on 127.0.0.1:{port}"):
            async with listener(port=port, secure=secure):
                pass


async def test_a_strange_address_is_named(listener: Listening) -> None:
    with pytest.raises(ListenError, match=r"cannot listen on 192\.0\.2\.1:0"):
        async with listener("192.0.2.1"):
            pass


async def test_leaving_frees_the_port(listener: Listening) -> None:
    port = free_port()
    async with listener(port=port):
        pass
    async with listener(port=port) as second:
        assert await check(second.address) == HealthCheckResponse.SERVING
