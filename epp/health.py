"""grpc.health.v1: Check, Watch and List, over our own copy of its three messages."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from epp.protocol import EXT_PROC
from epp.wire.messages.health_pb2 import (
    HealthCheckRequest,
    HealthCheckResponse,
    HealthListRequest,
    HealthListResponse,
)

SERVICE = "grpc.health.v1.Health"
LIVENESS = "liveness"
READINESS = ("", EXT_PROC, "readiness", "inference-extension")

Context = grpc.aio.ServicerContext[Any, Any]


class Health:
    """`liveness` serves as long as the process does; the other services serve while `serving` is set.

    A service that is none of these is NOT_FOUND for Check and SERVICE_UNKNOWN for Watch (grpc.health.v1). `clock`
    gives monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.asked_at = -math.inf
        """When the last Check came."""
        self._serving = False
        self._closed = False
        self._changed = asyncio.Event()

    @property
    def serving(self) -> bool:
        """Whether this picker should get traffic."""
        return self._serving

    def set_serving(self, serving: bool) -> None:
        """Tell every watcher."""
        self._serving = serving
        self._wake()

    def close(self) -> None:
        """End all Watch streams, so that a server can stop; they have been told what was set before."""
        self._closed = True
        self._wake()

    def handler(self) -> grpc.GenericRpcHandler:
        """What a grpc.aio server serves."""
        request, response = HealthCheckRequest.FromString, HealthCheckResponse.SerializeToString
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Check": grpc.unary_unary_rpc_method_handler(self._check, request, response),
                "Watch": grpc.unary_stream_rpc_method_handler(self._watch, request, response),
                "List": grpc.unary_unary_rpc_method_handler(
                    self._list, HealthListRequest.FromString, HealthListResponse.SerializeToString
                ),
            },
        )

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _status(self, service: str) -> HealthCheckResponse.ServingStatus:
        if service == LIVENESS or (service in READINESS and self._serving):
            return HealthCheckResponse.SERVING
        return (
            HealthCheckResponse.NOT_SERVING if service in READINESS else HealthCheckResponse.SERVICE_UNKNOWN
        )

    async def _check(self, request: HealthCheckRequest, context: Context) -> HealthCheckResponse:
        self.asked_at = self._clock()
        status = self._status(request.service)
        if status == HealthCheckResponse.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"unknown service {request.service!r}")
        return HealthCheckResponse(status=status)

    async def _watch(self, request: HealthCheckRequest, _: Context) -> AsyncIterator[HealthCheckResponse]:
        told = None
        while True:
            changed, closed, status = self._changed, self._closed, self._status(request.service)
            if status != told:
                yield HealthCheckResponse(status=status)
                told = status
            if closed:
                return
            await changed.wait()

    async def _list(self, _: HealthListRequest, __: Context) -> HealthListResponse:
        services = (LIVENESS, *READINESS)
        return HealthListResponse(
            statuses={service: HealthCheckResponse(status=self._status(service)) for service in services}
        )
