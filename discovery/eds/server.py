"""Serves the assignment to Envoys over gRPC: endpoint discovery, state of the world, and grpc.health.v1 for probes.

https://www.envoyproxy.io/docs/envoy/latest/api-docs/xds_protocol
"""

import asyncio
import itertools
import logging
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Final, Self

import grpc
from google.protobuf.any_pb2 import Any as ProtobufAny
from google.protobuf.message import DecodeError
from grpc import aio

from discovery.eds.assignment import TYPE_URL, Assignment, HealthStatus, LbEndpoint, version
from discovery.eds.messages.eds_pb2 import (
    DRAINING,
    UNHEALTHY,
    ClusterLoadAssignment,
    DiscoveryRequest,
    DiscoveryResponse,
    HealthCheckRequest,
    HealthCheckResponse,
)
from discovery.errors import AdsumError
from runtime.addresses import authority
from runtime.quoting import quoted
from runtime.tasks import cancel_and_wait

log = logging.getLogger("discovery.eds")

_SERVICE: Final = "envoy.service.endpoint.v3.EndpointDiscoveryService"
_SERVING, _NOT_SERVING = 1, 2
_OPTIONS: Final = [
    ("grpc.so_reuseport", 0),  # the default lets a second process take half of the Envoys
    ("grpc.max_receive_message_length", 1024 * 1024),
    ("grpc.max_concurrent_streams", 100),
    ("grpc.keepalive_time_ms", 30_000),  # an Envoy whose machine is gone
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),  # Envoy's PINGs; more often is "too_many_pings"
]
_HEALTH: Final = {HealthStatus.DRAINING: DRAINING, HealthStatus.UNHEALTHY: UNHEALTHY}
_MAX_STREAMS: Final = 4096
_GOODBYE: Final = 0.5
"""Seconds for streams to end when the server stops: they never end by themselves."""


class EdsListenError(AdsumError):
    """The port cannot be listened on."""


class EdsServer:
    """An async context manager. `publish` tells every Envoy of a new assignment; before the first one nobody is answered, so
    that an Envoy keeps what it had."""

    def __init__(self, host: str, port: int, cluster: str) -> None:
        self._host = host
        self._port = port
        self._cluster = cluster
        self._response: DiscoveryResponse | None = None
        self._streams: set[EdsStream] = set()
        self._server = aio.server(options=_OPTIONS, maximum_concurrent_rpcs=_MAX_STREAMS)
        self._server.add_generic_rpc_handlers((_handlers(self),))

    @property
    def address(self) -> str:
        """With the port that is listened on."""
        return authority(self._host, self._port)

    async def __aenter__(self) -> Self:
        try:
            self._port = self._server.add_insecure_port(self.address)
        except RuntimeError as error:
            raise EdsListenError(
                f"cannot listen on {self.address}; expected a free port of this machine; choose another --listen"
            ) from error
        await self._server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.stop(_GOODBYE)

    def publish(self, assignment: Assignment) -> None:
        """Tell every Envoy that is connected, and whoever asks from now on."""
        packed = ProtobufAny(type_url=TYPE_URL, value=_encode(self._cluster, assignment.endpoints))
        told = version(self._cluster, assignment.endpoints)
        self._response = DiscoveryResponse(version_info=told, resources=[packed], type_url=TYPE_URL)
        for stream in self._streams:
            stream.changed.set()

    async def stream(self, _: object, context: "aio.ServicerContext[Any, Any]") -> None:
        """StreamEndpoints: one Envoy, for as long as it is connected."""
        stream = EdsStream(self._cluster, context)
        self._streams.add(stream)
        reading = asyncio.create_task(stream.read(), name="read from an Envoy")
        try:
            while not reading.done():
                stream.changed.clear()
                if self._response is not None and stream.needs(self._response.version_info):
                    await stream.tell(self._response)
                await stream.changed.wait()
            await reading
        except DecodeError:
            log.warning("%s sent what is no DiscoveryRequest; expected Envoy's xDS v3", context.peer())
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "expected a DiscoveryRequest")
        finally:
            self._streams.discard(stream)
            await cancel_and_wait(reading)

    async def check(self, _: HealthCheckRequest, __: "aio.ServicerContext[Any, Any]") -> HealthCheckResponse:
        return HealthCheckResponse(status=_NOT_SERVING if self._response is None else _SERVING)


class EdsStream:
    """What one Envoy asked for and was told. `changed` is set when it asks, leaves, or a new assignment is there."""

    def __init__(self, cluster: str, context: "aio.ServicerContext[Any, Any]") -> None:
        self.changed = asyncio.Event()
        self._cluster = cluster
        self._context = context
        self._who = "an Envoy"
        self._subscribed = False
        self._told: str | None = None
        self._nonce = ""
        self._nonces = itertools.count(1)

    def needs(self, current: str) -> bool:
        return self._subscribed and self._told != current

    async def tell(self, response: DiscoveryResponse) -> None:
        answer = DiscoveryResponse()
        answer.CopyFrom(response)
        answer.nonce = self._nonce = str(next(self._nonces))
        self._told = response.version_info
        await self._context.write(answer)

    async def read(self) -> None:
        """Until the Envoy ends the stream."""
        try:
            while (request := await self._context.read()) is not aio.EOF:
                self._receive(request)
        finally:
            self.changed.set()

    def _receive(self, request: DiscoveryRequest) -> None:
        if request.node.id:  # Envoy may send it in the first request only
            self._who = quoted(request.node.id, 100)
        if request.response_nonce and request.response_nonce != self._nonce:
            return  # it answers an older response than the last one (xds_protocol, "ACK, NACK, and resource type instance version")
        if request.HasField("error_detail"):
            why = quoted(request.error_detail.message, 500)
            log.error("%s refused the endpoints and keeps what it had: %s", self._who, why)
        names = list(request.resource_names)
        wanted = not names or self._cluster in names
        if wanted and not self._subscribed:
            self._told = None
            log.info("%s asks for the endpoints", self._who)
        if not wanted and not request.response_nonce:
            log.warning(
                "%s asks for the cluster %s, and is told nothing: this is %s; see --cluster-name",
                self._who, quoted(names[0], 100), self._cluster,
            )  # fmt: skip
        self._subscribed = wanted
        self.changed.set()


def _encode(cluster: str, endpoints: Iterable[LbEndpoint]) -> bytes:
    """The ClusterLoadAssignment, as `resource` has it in JSON."""
    named = ClusterLoadAssignment(cluster_name=cluster)
    for zone, members in itertools.groupby(endpoints, key=lambda endpoint: endpoint.zone):
        locality = named.endpoints.add()
        if zone:
            locality.locality.zone = zone
        for member in members:
            told = locality.lb_endpoints.add()
            if member.health in _HEALTH:
                told.health_status = _HEALTH[member.health]
            address = told.endpoint.address.socket_address
            address.address, address.port_value = member.address, member.port
    return named.SerializeToString()


def _handlers(server: EdsServer) -> grpc.GenericRpcHandler:
    endpoints = grpc.stream_stream_rpc_method_handler(
        server.stream,
        request_deserializer=DiscoveryRequest.FromString,
        response_serializer=DiscoveryResponse.SerializeToString,
    )
    health = grpc.unary_unary_rpc_method_handler(
        server.check,
        request_deserializer=HealthCheckRequest.FromString,
        response_serializer=HealthCheckResponse.SerializeToString,
    )
    return _Handlers({f"/{_SERVICE}/StreamEndpoints": endpoints, "/grpc.health.v1.Health/Check": health})


class _Handlers(grpc.GenericRpcHandler):
    def __init__(self, methods: dict[str, Any]) -> None:
        self._methods = methods

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return self._methods.get(handler_call_details.method)
