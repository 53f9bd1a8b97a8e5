"""One gRPC channel to one member of etcd, and the methods that we call there; the only file here that imports grpc."""

import asyncio
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # our errors say what fails, once; read when grpc is imported

import grpc
from google.protobuf.message import Message
from grpc import aio

from adsum.quoting import printable
from adsum.tasks import cancel_and_wait
from discovery.errors import DiscoveryError, InputFileError
from discovery.etcd.errors import EtcdUnavailableError, classify, remedy
from discovery.etcd.messages import etcd_pb2 as etcd
from discovery.etcd.url import EtcdTls

Metadata = tuple[tuple[str, str], ...]

_MAX_MESSAGE: Final = 16 * 1024 * 1024
_OPTIONS: Final = [
    ("grpc.max_receive_message_length", _MAX_MESSAGE),
    ("grpc.max_send_message_length", _MAX_MESSAGE),
    ("grpc.enable_http_proxy", 0),  # members are addressed directly, as all workers are
    ("grpc.enable_retries", 0),  # we retry, at the next member
    ("grpc.use_local_subchannel_pool", 1),  # a new channel is a new connection, without an old one's backoff
]
_MAX_REASON: Final = 300
_BEFORE_REASON: Final = re.compile(
    r"^failed to connect to all addresses; last error: [A-Z]+: \S+ (Failed to connect to remote host: )?"
)
"""gRPC's text, with the address, before the reason."""
_MAX_FILE: Final = 1024 * 1024


Request = TypeVar("Request", bound=Message)
Answer = TypeVar("Answer", bound=Message)


@dataclass(frozen=True, slots=True)
class EtcdMethod(Generic[Request, Answer]):
    """`name`: service and method. `is_stream`: it takes a stream of requests and gives a stream of answers."""

    name: str
    request: type[Request]
    answer: type[Answer]
    is_stream: bool = False


AUTHENTICATE: Final = EtcdMethod("Auth/Authenticate", etcd.AuthenticateRequest, etcd.AuthenticateResponse)
RANGE: Final = EtcdMethod("KV/Range", etcd.RangeRequest, etcd.RangeResponse)
TXN: Final = EtcdMethod("KV/Txn", etcd.TxnRequest, etcd.TxnResponse)
WATCH: Final = EtcdMethod("Watch/Watch", etcd.WatchRequest, etcd.WatchResponse, is_stream=True)
LEASE_GRANT: Final = EtcdMethod("Lease/LeaseGrant", etcd.LeaseGrantRequest, etcd.LeaseGrantResponse)
LEASE_REVOKE: Final = EtcdMethod("Lease/LeaseRevoke", etcd.LeaseRevokeRequest, etcd.LeaseRevokeResponse)
LEASE_KEEP_ALIVE: Final = EtcdMethod(
    "Lease/LeaseKeepAlive", etcd.LeaseKeepAliveRequest, etcd.LeaseKeepAliveResponse, is_stream=True
)
LEASE_TIME_TO_LIVE: Final = EtcdMethod(
    "Lease/LeaseTimeToLive", etcd.LeaseTimeToLiveRequest, etcd.LeaseTimeToLiveResponse
)


class EtcdConnection:
    """Closed when it is retired and nobody uses it any more: to close a channel cancels its calls."""

    def __init__(self, member: str, tls: EtcdTls | None) -> None:
        """Raises InputFileError for a certificate that cannot be read."""
        self.member = member
        self._channel = (
            aio.insecure_channel(member, options=_OPTIONS)
            if tls is None
            else aio.secure_channel(member, _credentials(tls), options=_OPTIONS)
        )
        self._users = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        self._users += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self._idle.set()

    async def aclose(self) -> None:
        """Waits until nobody uses it."""
        await self._idle.wait()
        await self.abort()

    async def abort(self) -> None:
        await self._channel.close()

    async def ask(
        self, method: EtcdMethod[Request, Answer], request: Request, metadata: Metadata, timeout: float
    ) -> Answer:
        """Raises one of `discovery.etcd.errors`, or ForbiddenError."""
        if method.is_stream:
            stream = self.stream(method, metadata)
            try:
                await stream.send(request, timeout)
                if (answer := await stream.receive(timeout)) is None:
                    raise self.silent(timeout)
                return answer
            finally:
                await stream.aclose()
        call = self._channel.unary_unary(
            f"/etcdserverpb.{method.name}",
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.answer.FromString,
        )
        try:
            found: Answer = await call(request, timeout=timeout, metadata=metadata)
        except aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise self.silent(timeout) from error
            raise self.error_of(error) from error
        return found

    def stream(
        self, method: EtcdMethod[Request, Answer], metadata: Metadata
    ) -> "EtcdStream[Request, Answer]":
        call = self._channel.stream_stream(
            f"/etcdserverpb.{method.name}",
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.answer.FromString,
        )
        return EtcdStream(self, call(metadata=metadata))

    def error(self, code: str, text: str) -> DiscoveryError:
        """The answer as an error; `code`: the name of a gRPC status, "" if unknown."""
        reason = printable(_BEFORE_REASON.sub("", text) or code, _MAX_REASON)
        kind, advice = classify(code, text), remedy(text)
        return kind(f"etcd at {self.member}: {reason}" + (f"; {advice}" if advice else ""))

    def silent(self, timeout: float) -> EtcdUnavailableError:
        return EtcdUnavailableError(f"etcd at {self.member}: no answer within {timeout:g} s")

    def error_of(self, error: aio.AioRpcError) -> DiscoveryError:
        return self.error(error.code().name, error.details() or "")


class EtcdStream(Generic[Request, Answer]):
    """A stream in both directions."""

    def __init__(self, connection: EtcdConnection, call: "aio.StreamStreamCall[Any, Any]") -> None:
        self.connection = connection
        self._call = call
        self._reading: asyncio.Task[Any] | None = None

    async def send(self, request: Request, timeout: float) -> None:
        """EtcdUnavailableError if the member does not take it within `timeout` seconds: a frozen one accepts connections only."""
        try:
            async with asyncio.timeout(timeout):
                await self._call.write(request)
        except TimeoutError as error:
            raise self.connection.silent(timeout) from error
        except aio.AioRpcError as error:
            raise self.connection.error_of(error) from error
        except asyncio.InvalidStateError as error:
            raise self._ended() from error

    async def receive(self, timeout: float) -> Answer | None:
        """The next answer; None after `timeout` seconds, and the next call waits for the same answer: to cancel a read would
        end the stream (grpc.aio)."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(), name=f"read from {self.connection.member}")
        done, _ = await asyncio.wait([self._reading], timeout=timeout)
        if not done:
            return None
        reading, self._reading = self._reading, None
        if reading.cancelled():
            raise self._ended()
        answer: Answer = reading.result()
        return answer

    async def aclose(self) -> None:
        self._call.cancel()
        if self._reading is not None:
            await cancel_and_wait(self._reading)
            if not self._reading.cancelled():
                self._reading.exception()  # nobody reads it any more

    async def _read(self) -> Any:
        try:
            answer = await self._call.read()
        except aio.AioRpcError as error:
            raise self.connection.error_of(error) from error
        if answer is aio.EOF:
            raise self._ended()
        return answer

    def _ended(self) -> EtcdUnavailableError:
        return EtcdUnavailableError(f"etcd at {self.connection.member} ended the stream")


def _credentials(tls: EtcdTls) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(_pem(tls.cacert), _pem(tls.key), _pem(tls.cert))


def _pem(path: Path | None) -> bytes | None:
    return None if path is None else read_small_file(path)


def read_small_file(path: Path) -> bytes:
    """Raises InputFileError if it cannot be read, is empty or has more than 1 MiB."""
    try:
        with path.open("rb") as file:
            found = file.read(_MAX_FILE + 1)
    except OSError as error:
        raise InputFileError(f"{path} cannot be read: {error.strerror or error}") from error
    if not found or len(found) > _MAX_FILE:
        raise InputFileError(
            f"{path} has {'no' if not found else 'too many'} bytes; expected 1 to {_MAX_FILE}"
        )
    return found
