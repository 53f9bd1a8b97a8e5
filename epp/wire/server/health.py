"""grpc.health.v1 as methods of our own gRPC server."""

import logging
from collections.abc import Callable
from typing import Final

from google.protobuf.message import DecodeError

from epp.health import SERVICE, Health, UnknownServiceError
from epp.wire.messages.health_pb2 import HealthCheckRequest, HealthCheckResponse
from epp.wire.server.grpc_call import Call, Method, frames
from epp.wire.server.grpc_messages import GrpcStatus, StatusError

log = logging.getLogger(__name__)

_LARGEST: Final = 1024
"""Bytes of a request: the name of a service."""


def health_methods(health: Health) -> dict[bytes, Method]:
    """grpc.health.v1, by path."""

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
    """One message, one answer."""

    __slots__ = ("_answer", "_call", "_request")

    def __init__(self, call: Call, answer: Callable[[bytes], bytes]) -> None:
        self._call = call
        self._answer = answer
        self._request: bytes | None = None

    def message(self, payload: bytes) -> None:
        if self._request is not None:
            raise StatusError(GrpcStatus.UNIMPLEMENTED, "a second message to a method that takes one")
        _check_size(payload)
        self._request = payload

    def half_closed(self) -> None:
        if self._request is None:
            raise StatusError(GrpcStatus.UNIMPLEMENTED, "no message to a method that takes one")
        try:
            answer = self._answer(self._request)
        except DecodeError:
            raise StatusError(GrpcStatus.INTERNAL, "a message that is no request of this method") from None
        self._call.send((answer,))
        self._call.finish(GrpcStatus.OK)

    def fault(self, error: Exception) -> None:
        _refuse(self._call, error)

    def closed(self, cause: str) -> None: ...


class _Watch:
    """One message, then a status whenever it is another one."""

    __slots__ = ("_call", "_health", "_service", "_told")

    def __init__(self, call: Call, health: Health) -> None:
        self._call = call
        self._health = health
        self._service: str | None = None
        self._told: HealthCheckResponse.ServingStatus | None = None

    def message(self, payload: bytes) -> None:
        if self._service is not None:
            raise StatusError(GrpcStatus.UNIMPLEMENTED, "a second message to a method that takes one")
        _check_size(payload)
        try:
            self._service = HealthCheckRequest.FromString(payload).service
        except DecodeError:
            raise StatusError(GrpcStatus.INTERNAL, "a message that is no request of this method") from None
        self._health.watchers.add(self._tell)
        self._tell()

    def half_closed(self) -> None:
        if self._service is None:
            raise StatusError(GrpcStatus.UNIMPLEMENTED, "no message to a method that takes one")

    def fault(self, error: Exception) -> None:
        _refuse(self._call, error)

    def closed(self, cause: str) -> None:
        self._health.watchers.discard(self._tell)

    def _tell(self) -> None:
        status = self._health.status(self._service or "")
        if status != self._told:
            self._told = status
            self._call.send((HealthCheckResponse(status=status).SerializeToString(),))
        if self._health.closed:
            self._call.finish(GrpcStatus.OK)


def _check_size(payload: bytes) -> None:
    """It is kept until the client ends its stream, which it may never do."""
    if len(payload) > _LARGEST:
        text = f"a health request of {len(payload)} bytes; at most {_LARGEST} are taken"
        raise StatusError(GrpcStatus.RESOURCE_EXHAUSTED, text)


def _refuse(call: Call, error: Exception) -> None:
    if isinstance(error, StatusError):
        call.finish(error.status, str(error))
        return
    log.error("a health call: %s\n%s", type(error).__name__, frames(error))
    call.finish(GrpcStatus.INTERNAL, f"the picker failed: {type(error).__name__}")
