"""Our own server over real sockets: what only a socket, a clock or TLS shows."""

import asyncio
import datetime
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from grpc import aio

from adsum.serving.sockets import set_tcp_options
from epp.config.settings import TransportKind
from epp.ext_proc.exchange import Exchange
from epp.ext_proc.exchange_settings import ExchangeSettings
from epp.health import Health
from epp.request.body import MemoryBudget
from epp.wire import certificate
from epp.wire.certificate import Certificate, CertificateFiles, KeyPair
from epp.wire.http2.frames import PING as PING_KIND
from epp.wire.http2.frames import PREFACE, Http2ErrorCode, frame, goaway, settings
from epp.wire.messages.ext_proc_pb2 import ProcessingRequest
from epp.wire.messages.health_pb2 import HealthCheckRequest, HealthCheckResponse
from epp.wire.opening import open_transport
from epp.wire.server.grpc_messages import prefixed
from epp.wire.server.transport import IDLE_TIMEOUT, Http2Transport
from epp.wire.transport import ListenAddress, Listener
from tests.epp.local_picker import health_over
from tests.epp.wire.conftest import HEADERS, PATH
from tests.eventually import eventually
from tests.in_time import TooLateError, with_more_time

PING = frame(PING_KIND, 0, 0, b"are you?")


class Picker:
    """One port of our own server over a director."""

    def __init__(self, director: Any, place: ListenAddress, *, processing: bool = True) -> None:
        self.memory = MemoryBudget(32 * 1024 * 1024)
        self.transport = Http2Transport(
            lambda: Exchange(director, ExchangeSettings(), budget=self.memory),
            Health(),
            self.memory,
            time.monotonic,
        )
        self.listener = self.transport.listener(place, processing=processing)

    async def connect(self) -> "Client":
        reader, writer = await asyncio.open_connection("127.0.0.1", self.listener.port)
        return Client(reader, writer)

    async def answered(self, messages: Any) -> tuple["Client", int]:
        """A client and its first stream, whose request was answered."""
        client = await self.connect()
        stream = client.open()
        client.send(stream, messages.headers(end_of_stream=True))
        client.flush()
        while not client.saw(h2.events.DataReceived):
            await client.read()
        return client, stream


class Client:
    """h2 over a socket; reads only when told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.events: list[h2.events.Event] = []

    def open(self) -> int:
        stream: int = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream, HEADERS)
        return stream

    def send(self, stream: int, *messages: ProcessingRequest) -> None:
        data = prefixed([message.SerializeToString() for message in messages])
        for start in range(0, len(data), 16_384):
            self.h2.send_data(stream, data[start : start + 16_384])

    def flush(self) -> None:
        self.writer.write(self.h2.data_to_send())

    async def read(self) -> bool:
        """What comes next; whether something did."""
        data = await self.reader.read(65_536)
        if data:
            self.events += self.h2.receive_data(data)
            self.flush()
        return bool(data)

    def saw(self, kind: type) -> bool:
        return any(isinstance(event, kind) for event in self.events)

    async def close(self) -> None:
        self.writer.close()


@asynccontextmanager
async def picking(
    director: Any, place: ListenAddress | None = None, *, processing: bool = True
) -> AsyncIterator[Picker]:
    picker = Picker(director, place or ListenAddress("127.0.0.1", 0), processing=processing)
    async with picker.listener:
        yield picker


async def test_what_a_client_still_says_when_we_leave_does_not_cost_it_what_we_said(
    director: Any, messages: Any
) -> None:
    """A socket that is closed with something unread is reset, and then the client's next write fails."""
    async with picking(director) as picker:
        client, stream = await picker.answered(messages)
        picker.transport.drain()
        stopping = asyncio.create_task(picker.listener.drain(90))
        client.send(stream, messages.response_headers())
        client.flush()
        said = b""
        while chunk := await client.reader.read(65_536):
            said += chunk
            client.writer.write(PING)
        assert b"grpc-status" in said
        for _ in range(3):
            client.writer.write(PING)
            await client.writer.drain()
            await asyncio.sleep(0.02)
        assert not stopping.done()
        await client.close()
        await stopping


async def test_a_client_that_never_reads_is_not_read_either(director: Any, messages: Any) -> None:
    """It can make us hold what its windows and the socket's buffers allow, and no more."""
    async with picking(director) as picker:
        client = await picker.connect()
        client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 2**31 - 1})
        client.h2.increment_flow_control_window(2**31 - 1 - 65_535)
        client.flush()
        while not client.saw(h2.events.RemoteSettingsChanged):
            await client.read()
        sent = 0
        stream = client.open()
        client.send(stream, messages.headers({"upgrade": "x"}, response_mode="FULL_DUPLEX_STREAMED"))
        try:
            while sent < 200_000_000:
                client.send(stream, messages.body(bytes(16_000), end_of_stream=False))
                sent += 16_000
                client.writer.write(client.h2.data_to_send())
                async with asyncio.timeout(1):
                    await client.writer.drain()
        except (TimeoutError, h2.exceptions.FlowControlError):
            pass  # the stream's window is used up, or the socket takes no more
        assert sent < 50_000_000
        assert picker.memory.held < 8_000_000
        answered = 0
        while answered < sent:  # it reads after all: everything is there
            assert await client.read()
            for event in client.events:
                if isinstance(event, h2.events.DataReceived):
                    answered += len(event.data)
            client.events.clear()
        await client.close()
        await eventually(lambda: picker.memory.held == 0 and picker.transport.open_streams == 0)


async def test_answers_of_one_read_are_written_together(director: Any, messages: Any) -> None:
    async with picking(director) as picker:
        client = await picker.connect()
        client.flush()
        while not client.saw(h2.events.SettingsAcknowledged):
            await client.read()
        for _ in range(10):
            stream = client.open()
            client.send(stream, messages.headers(), messages.body(b"abc", end_of_stream=True))
        client.flush()
        client.events.clear()
        await client.read()
        answered = {e.stream_id for e in client.events if isinstance(e, h2.events.DataReceived)}
        assert len(answered) == 10
        await client.close()


@pytest.mark.parametrize("greeting", [b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"\x16\x03\x01" + bytes(100)])
async def test_what_does_not_speak_http2_is_told_and_left(director: Any, greeting: bytes) -> None:
    async with picking(director) as picker:
        client = await picker.connect()
        client.writer.write(greeting)
        async with asyncio.timeout(90):
            said = await client.reader.read()
        assert b"not HTTP/2" in said
        await client.close()


async def test_a_connection_that_breaks_gives_everything_back(director: Any, messages: Any) -> None:
    async with picking(director) as picker:
        client = await picker.connect()
        for _ in range(50):
            stream = client.open()
            client.send(stream, messages.headers(), messages.body(bytes(500), end_of_stream=True))
            client.h2.send_data(client.open(), b"\0\0\0\2\0half a message")
        client.flush()
        await eventually(lambda: len(director.directed) == 50)
        assert picker.memory.held > 0
        client.writer.transport.abort()
        await eventually(lambda: picker.transport.open_streams == 0)
        assert len(director.released) == 50
        assert picker.memory.held == 0


async def test_a_stop_with_grace_ends_when_the_last_stream_does(director: Any, messages: Any) -> None:
    async with picking(director) as picker:
        client, stream = await picker.answered(messages)
        stopping = asyncio.create_task(picker.listener.drain(90))
        while b"leaving" not in (said := await client.reader.read(65_536)):
            pass
        assert said[3] == 7, "a GOAWAY comes before the PING"
        with pytest.raises(ConnectionRefusedError):
            await picker.connect()
        client.h2.reset_stream(stream)
        client.flush()
        async with asyncio.timeout(90):
            while await client.reader.read(65_536):
                pass
            await client.close()
            await stopping
        assert len(director.released) == 1


async def test_a_stop_without_grace_says_so_on_every_stream(director: Any, messages: Any) -> None:
    async with picking(director) as picker, aio.insecure_channel(picker.listener.address) as channel:
        calls: list[Any] = [channel.stream_stream(PATH)() for _ in range(2)]
        for call in calls:
            await call.write(messages.headers(end_of_stream=True).SerializeToString())
            await call.read()
        await calls[1].write(messages.response_headers().SerializeToString())
        await calls[1].read()
        async with asyncio.timeout(90):
            await picker.listener.drain(None)
            assert await calls[0].code() is grpc.StatusCode.UNAVAILABLE
            assert await calls[1].code() is grpc.StatusCode.OK
    assert len(director.released) == 2


@with_more_time(200)
async def test_a_deadline_of_the_client(director: Any, messages: Any, ms: int) -> None:
    async with picking(director) as picker, aio.insecure_channel(picker.listener.address) as channel:
        await channel.channel_ready()
        call: Any = channel.stream_stream(PATH)(timeout=ms / 1000)
        try:
            await call.write(messages.headers().SerializeToString())
        except (asyncio.InvalidStateError, aio.AioRpcError) as error:
            raise TooLateError from error
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await eventually(lambda: picker.transport.open_streams == 0)


async def test_a_fault_at_the_end_of_a_stream_ends_nothing_else(
    director: Any, messages: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A director that cannot even release: its stream is over, and others go on."""

    prompt = "a secret"

    def release(*_: object) -> None:
        raise ZeroDivisionError(prompt)

    async with picking(director) as picker:
        director.release = release
        client = await picker.connect()
        stream = client.open()
        client.send(stream, messages.headers(end_of_stream=True))
        client.h2.end_stream(stream)
        client.flush()
        while not client.saw(h2.events.StreamEnded):
            await client.read()
        await eventually(lambda: "ZeroDivisionError" in caplog.text)
        assert prompt not in caplog.text
        other = client.open()
        client.send(other, messages.headers(end_of_stream=True))
        client.flush()
        client.events.clear()
        while not client.saw(h2.events.DataReceived):
            await client.read()
        del director.release
        await client.close()


async def test_streams_aborted_at_every_stage_leave_nothing(director: Any, messages: Any) -> None:
    """A client resets each stream after one message more than the last, and now and then the connection breaks."""
    stages = [
        (),
        (messages.headers(),),
        (messages.headers(), messages.body(b"abc", end_of_stream=False)),
        (messages.headers(), messages.body(b"abc", end_of_stream=True)),
        (messages.headers(end_of_stream=True), messages.response_headers()),
    ]
    async with picking(director) as picker:
        for connection in range(20):
            client = await picker.connect()
            for number in range(100):
                stream = client.open()
                client.send(stream, *stages[number % len(stages)])
                if number % 7:
                    client.h2.reset_stream(stream)
            client.flush()
            await client.read()
            if connection % 2:
                client.writer.transport.abort()
            else:
                await client.close()
        await eventually(lambda: picker.transport.open_streams == 0)
        assert len(director.released) == len(director.directed) > 500
        assert picker.memory.held == 0


async def left(client: Client) -> bytes:
    """All that comes until the connection is closed or reset."""
    said = b""
    async with asyncio.timeout(90):
        with suppress(ConnectionError):
            while chunk := await client.reader.read(65_536):
                said += chunk
    return said


async def test_silent_streams_keep_nobody_out(director: Any, messages: Any) -> None:
    """Nor do they cost an idle Envoy its connection: strangers have to go first."""
    async with picking(director) as picker, AsyncExitStack() as stack:
        picker.listener.connections.max_connections = 2
        envoy, stream = await picker.answered(messages)
        envoy.h2.reset_stream(stream)
        envoy.flush()
        await eventually(lambda: picker.transport.open_streams == 0)
        for _ in range(3):
            stranger = await picker.connect()
            stack.push_async_callback(stranger.close)
            stranger.open()
            stranger.flush()
            while not stranger.saw(h2.events.SettingsAcknowledged):
                assert await stranger.read()
        assert picker.transport.open_streams == 1
        other, _ = await picker.answered(messages)
        await left(stranger)
        envoy.events.clear()
        envoy.send(envoy.open(), messages.headers(end_of_stream=True))
        envoy.flush()
        while not envoy.saw(h2.events.DataReceived):
            assert await envoy.read()
        for client in (envoy, other):
            await client.close()


async def test_watches_of_health_keep_no_probe_out(director: Any) -> None:
    request = prefixed([HealthCheckRequest(service="liveness").SerializeToString()])
    watch = [(name, "/grpc.health.v1.Health/Watch" if name == ":path" else value) for name, value in HEADERS]
    async with picking(director, processing=False) as picker, AsyncExitStack() as stack:
        picker.listener.connections.max_connections = 2
        for _ in range(4):
            watcher = await picker.connect()
            stack.push_async_callback(watcher.close)
            stream = watcher.h2.get_next_available_stream_id()
            watcher.h2.send_headers(stream, watch)
            watcher.h2.send_data(stream, request)
            watcher.flush()
            while not watcher.saw(h2.events.DataReceived):
                assert await watcher.read()


async def test_a_connection_that_is_idle_for_long_ends_with_a_goaway(director: Any, messages: Any) -> None:
    """What its peer sends meanwhile is served: it would fail where the socket is reset."""
    async with picking(director) as picker:
        client, stream = await picker.answered(messages)
        client.h2.reset_stream(stream)
        client.writer.write(client.h2.data_to_send() + PING)
        while b"are you?" not in await client.reader.read(65_536):
            pass
        picker.listener.connections.expire(asyncio.get_running_loop().time() + IDLE_TIMEOUT + 1)
        late = client.open()
        client.send(late, messages.headers(end_of_stream=True), messages.response_headers())
        client.h2.end_stream(late)
        client.flush()
        said = await left(client)
        assert said.startswith(goaway(2**31 - 1, Http2ErrorCode.NO_ERROR))
        assert b"grpc-status\x010" in said
        assert said.endswith(goaway(late, Http2ErrorCode.NO_ERROR))
        await client.close()


def make_pair(name: str, signer: tuple[x509.Certificate, Any] | None = None) -> tuple[KeyPair, Any, Any]:
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer, signing = (subject, key) if signer is None else (signer[0].subject, signer[1])
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(hours=1))
    builder = builder.not_valid_after(now + datetime.timedelta(days=1))
    builder = builder.add_extension(x509.BasicConstraints(ca=signer is None, path_length=None), critical=True)
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    signed = builder.sign(signing, hashes.SHA256())
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return KeyPair(private, signed.public_bytes(pem)), signed, key


async def check(address: str, credentials: grpc.ChannelCredentials) -> int:
    options = [("grpc.ssl_target_name_override", "localhost")]
    async with aio.secure_channel(address, credentials, options=options) as channel:
        answer: HealthCheckResponse = await health_over(channel)(
            HealthCheckRequest(service="liveness"), timeout=90
        )
        return answer.status


@pytest.fixture(params=list(TransportKind))
def health_on(request: pytest.FixtureRequest) -> Callable[[ListenAddress], Listener]:
    """Health alone, over each transport."""

    def listen(place: ListenAddress) -> Listener:
        transport = open_transport(request.param, pytest.fail, Health(), MemoryBudget(1000), time.monotonic)
        return transport.listener(place, processing=False)

    return listen


async def test_only_clients_of_a_ca(health_on: Callable[[ListenAddress], Listener]) -> None:
    authority, signed, key = make_pair("ca")
    server, _, _ = make_pair("server", (signed, key))
    client, _, _ = make_pair("client", (signed, key))
    stranger, _, _ = make_pair("stranger")
    place = ListenAddress("127.0.0.1", 0, Certificate(server, client_ca=authority.certificate))
    async with health_on(place) as listener:
        known = grpc.ssl_channel_credentials(authority.certificate, client.key, client.certificate)
        assert await check(listener.address, known) == HealthCheckResponse.SERVING
        for credentials in (
            grpc.ssl_channel_credentials(authority.certificate),
            grpc.ssl_channel_credentials(authority.certificate, stranger.key, stranger.certificate),
        ):
            with pytest.raises(aio.AioRpcError) as caught:
                await check(listener.address, credentials)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_certificate_that_is_replaced_is_served(
    health_on: Callable[[ListenAddress], Listener],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "epp")
    first, _, _ = make_pair("first")
    second, _, _ = make_pair("second")

    def write(key: bytes, chain: bytes) -> None:
        (tmp_path / "tls.key").write_bytes(key)
        (tmp_path / "tls.crt").write_bytes(chain)

    write(first.key, first.certificate)
    served = Certificate(certificate.read(tmp_path))
    following = asyncio.create_task(served.reload_when_changed(CertificateFiles(tmp_path), interval=0.02))
    try:
        async with health_on(ListenAddress("127.0.0.1", 0, served)) as listener:
            trusting_first = grpc.ssl_channel_credentials(first.certificate)
            trusting_second = grpc.ssl_channel_credentials(second.certificate)
            assert await check(listener.address, trusting_first) == HealthCheckResponse.SERVING
            write(first.key, second.certificate)
            await eventually(lambda: "certificate not reloaded" in caplog.text)
            assert await check(listener.address, trusting_first) == HealthCheckResponse.SERVING
            write(second.key, second.certificate)
            await eventually(lambda: served.pair == second)
            assert await check(listener.address, trusting_second) == HealthCheckResponse.SERVING
            with pytest.raises(aio.AioRpcError):
                await check(listener.address, trusting_first)
    finally:
        following.cancel()
        await asyncio.wait({following})


async def test_a_client_ca_that_is_replaced_holds(
    health_on: Callable[[ListenAddress], Listener], tmp_path: Path
) -> None:
    """Its new clients are served, its old ones no longer."""
    (old, *old_signer), (new, *new_signer) = make_pair("old"), make_pair("new")
    server, _, _ = make_pair("server")
    file = tmp_path / "ca.crt"
    file.write_bytes(old.certificate)
    files = CertificateFiles(None, file)
    served = Certificate(server, client_ca=files.read_client_ca())
    following = asyncio.create_task(served.reload_when_changed(files, interval=0.02))

    def credentials(signer: list[Any]) -> grpc.ChannelCredentials:
        client, _, _ = make_pair("client", (signer[0], signer[1]))
        return grpc.ssl_channel_credentials(server.certificate, client.key, client.certificate)

    try:
        async with health_on(ListenAddress("127.0.0.1", 0, served)) as listener:
            assert await check(listener.address, credentials(old_signer)) == HealthCheckResponse.SERVING
            file.write_bytes(new.certificate)
            await eventually(lambda: served.client_ca == new.certificate)
            assert await check(listener.address, credentials(new_signer)) == HealthCheckResponse.SERVING
            with pytest.raises(aio.AioRpcError):
                await check(listener.address, credentials(old_signer))
    finally:
        following.cancel()
        await asyncio.wait({following})


async def test_tls_without_alpn_is_not_served(director: Any) -> None:
    pair = certificate.self_signed(datetime.datetime.now(datetime.UTC))
    async with picking(director, ListenAddress("127.0.0.1", 0, Certificate(pair))) as picker:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        reader, writer = await asyncio.open_connection("127.0.0.1", picker.listener.port, ssl=context)
        writer.write(PREFACE + settings({}))
        async with asyncio.timeout(90):
            assert await reader.read() == b""
        writer.close()


async def test_handshakes_that_do_not_end_keep_nobody_out(director: Any) -> None:
    """They make room for each other: neither an idle Envoy nor the slow handshake of another address is closed for them."""
    served = Certificate(certificate.self_signed(datetime.datetime.now(datetime.UTC)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    async with picking(director, ListenAddress("127.0.0.1", 0, served)) as picker, AsyncExitStack() as stack:
        connections = picker.listener.connections
        connections.max_connections = 8
        stack.push_async_callback(eventually, lambda: not connections.open and not connections.handshaking)
        place = "127.0.0.1", picker.listener.port
        idle = Client(*await asyncio.open_connection(*place, ssl=context))
        stack.callback(idle.writer.transport.abort)
        idle.flush()
        while not idle.saw(h2.events.SettingsAcknowledged):
            assert await idle.read()
        slow = stack.enter_context(socket.create_connection(place))
        strangers = [
            stack.enter_context(socket.create_connection(place, source_address=("127.0.0.2", 0)))
            for _ in range(30)
        ]
        await eventually(lambda: sum(map(closed, strangers)) == 24)
        slow.setblocking(False)
        client = Client(*await asyncio.open_connection(sock=slow, ssl=context, server_hostname=""))
        stack.callback(client.writer.transport.abort)
        for one in (idle, client):
            one.writer.write(one.h2.data_to_send() + PING)
            said = b""
            while b"are you?" not in said:
                chunk = await one.reader.read(65_536)
                assert chunk
                said += chunk


def closed(client: socket.socket) -> bool:
    """Whether the other side has closed or reset it."""
    try:
        return client.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_answers_leave_at_once() -> None:
    """A socket made without naming its protocol, as a listening one is, keeps small writes back until told not to."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        accepted, _ = server.accept()
        with accepted:
            set_tcp_options(accepted)
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


async def test_every_interface_is_both_kinds_of_address(director: Any) -> None:
    async with picking(director, ListenAddress("::", 0)) as picker:
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, picker.listener.port), timeout=90):
                pass
        assert picker.listener.address == f"[::]:{picker.listener.port}"


async def test_a_stream_that_nobody_ends_does_not_hold_up_a_stop(director: Any, messages: Any) -> None:
    async with picking(director) as picker:
        client = await picker.connect()
        client.send(client.open(), messages.headers())
        client.flush()
        await client.read()
        async with asyncio.timeout(90):
            await picker.listener.drain(0.1)
        assert picker.transport.open_streams == 0
        async with asyncio.timeout(90):
            assert goaway(1, Http2ErrorCode.NO_ERROR) in await client.reader.read()
        await client.close()
