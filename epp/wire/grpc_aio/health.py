"""Serves grpc.health.v1 with grpc.aio."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from epp.health import SERVICE, Health, UnknownServiceError
from epp.wire.messages.health_pb2 import (
    HealthCheckRequest,
    HealthCheckResponse,
    HealthListRequest,
    HealthListResponse,
)

Context = grpc.aio.ServicerContext[Any, Any]


def health_handler(health: Health) -> grpc.GenericRpcHandler:
    async def check(request: HealthCheckRequest, context: Context) -> HealthCheckResponse:
        try:
            return health.check(request.service)
        except UnknownServiceError as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))

    async def watch(request: HealthCheckRequest, _: Context) -> AsyncIterator[HealthCheckResponse]:
        changed = asyncio.Event()
        health.watchers.add(changed.set)
        try:
            sent = None
            while True:
                changed.clear()
                closed, status = health.closed, health.status(request.service)
                if status != sent:
                    yield HealthCheckResponse(status=status)
                    sent = status
                if closed:
                    return
                await changed.wait()
        finally:
            health.watchers.discard(changed.set)

    async def statuses(_: HealthListRequest, __: Context) -> HealthListResponse:
        return health.list()

    request, response = HealthCheckRequest.FromString, HealthCheckResponse.SerializeToString
    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            "Check": grpc.unary_unary_rpc_method_handler(check, request, response),
            "Watch": grpc.unary_stream_rpc_method_handler(watch, request, response),
            "List": grpc.unary_unary_rpc_method_handler(
                statuses, HealthListRequest.FromString, HealthListResponse.SerializeToString
            ),
        },
    )
