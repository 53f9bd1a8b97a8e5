"""Serves grpc.health.v1 with our own gRPC server."""

from collections.abc import Callable
from typing import Final

from google.protobuf.message import DecodeError

from epp.health import SERVICE, Health, UnknownServiceError
from epp.wire.messages.health_pb2 import HealthCheckRequest, HealthCheckResponse
from epp.wire.server.grpc_call import Call, Method
from epp.wire.server.grpc_messages import GrpcStatus, StatusError

_MAX_REQUEST: Final = 1024
"""Bytes of a request, which is the name of a service."""


def health_methods(health: Health) -> dict[bytes, Method]:
    """The methods of grpc.health.v1, by path."""

    def check(payload: bytes) -> bytes:
        try:
            return health.check(HealthCheckRequest.FromString(payload).service).SerializeToString()
        except UnknownServiceError as error:
            raise StatusError(GrpcStatus.NOT_FOUND, str(error)) from None

    def statuses(payload: bytes) -> bytes:
        return health.list().SerializeToString()

    prefix = f"/{SERVICE}/".encode()
    return {
        prefix + b"Check": lambda call: _Unary(call, check),
        prefix + b"List": lambda call: _Unary(call, statuses),
        prefix + b"Watch": lambda call: _Watch(call, health),
    }


class _Unary:
    """Handler of a unary method: one message, one answer."""

    __slots__ = ("_answer", "_call", "_request")

    def __init__(self, call: Call, answer: Callable[[bytes], bytes]) -> None:
        self._call = call
        self._answer = answer
        self._request: bytes | None = None

    def message(self, payload: bytes) -> None:
        if self._request is not None:
            raise StatusError(GrpcStatus.UNIMPLEMENTED, "the method takes one message, and a second one came")
        _check_size(payload)
        self._request = payload

    def half_closed(self) -> None:
        if self._request is None:
            raise StatusError(GrpcStatus.UNIMPLEMENTED, "the method takes one message, and none came")
        try:
            answer = self._answer(self._request)
        except DecodeError:
            raise StatusError(GrpcStatus.INTERNAL, "the message is not a request of this method") from None
        self._call.send((answer,))
        self._call.finish(GrpcStatus.OK)

    def fault(self, error: Exception) -> None:
        self._call.fail(error, "a health call")

    def closed(self, cause: str) -> None: ...


class _Watch:
    """Handler of Watch: sends the status at once and whenever it changes (grpc's doc/health-checking.md)."""

    __slots__ = ("_call", "_health", "_sent_status", "_service")

    def __init__(self, call: Call, health: Health) -> None:
        self._call = call
        self._health = health
        self._service: str | None = None
        self._sent_status: HealthCheckResponse.ServingStatus | None = None

    def message(self, payload: bytes) -> None:
        if self._service is not None:
            raise StatusError(GrpcStatus.UNIMPLEMENTED, "the method takes one message, and a second one came")
        _check_size(payload)
        try:
            self._service = HealthCheckRequest.FromString(payload).service
        except DecodeError:
            raise StatusError(GrpcStatus.INTERNAL, "the message is not a request of this method") from None
        self._call.begin()
        self._health.watchers.add(self._send_status)
        self._send_status()

    def half_closed(self) -> None:
        if self._service is None:
            raise StatusError(GrpcStatus.UNIMPLEMENTED, "the method takes one message, and none came")

    def fault(self, error: Exception) -> None:
        self._call.fail(error, "a health call")

    def closed(self, cause: str) -> None:
        self._health.watchers.discard(self._send_status)

    def _send_status(self) -> None:
        status = self._health.status(self._service or "")
        if status != self._sent_status:
            self._sent_status = status
            self._call.send((HealthCheckResponse(status=status).SerializeToString(),))
        if self._health.closed:
            self._call.finish(GrpcStatus.OK)


def _check_size(payload: bytes) -> None:
    """Raise StatusError for a large request: it is held until the client ends its stream, which may be never."""
    if len(payload) > _MAX_REQUEST:
        text = f"a health request of {len(payload)} bytes is larger than the limit of {_MAX_REQUEST}"
        raise StatusError(GrpcStatus.RESOURCE_EXHAUSTED, text)
