"""Serves the assignment to Envoys over gRPC: endpoint discovery, state of the world, and grpc.health.v1 for probes.

https://www.envoyproxy.io/docs/envoy/latest/api-docs/xds_protocol
"""

import asyncio
import itertools
import logging
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import grpc
from google.protobuf.any_pb2 import Any as ProtobufAny
from google.protobuf.message import DecodeError
from grpc import aio

from adsum.addresses import authority
from adsum.logs import RateLimitedLog
from adsum.quoting import quoted
from adsum.tasks import cancel_and_wait
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

log = logging.getLogger("discovery.eds")

_SERVICE: Final = "envoy.service.endpoint.v3.EndpointDiscoveryService"
_SERVING, _NOT_SERVING = 1, 2
_OPTIONS: Final = [
    ("grpc.so_reuseport", 0),  # the default lets a second process take half of the Envoys
    ("grpc.max_receive_message_length", 1024 * 1024),
    ("grpc.max_concurrent_streams", 32),  # an Envoy has one for each cluster that it asks for here
    ("grpc.keepalive_time_ms", 30_000),  # an Envoy whose machine is gone
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),  # Envoy's PINGs; more often is "too_many_pings"
]
_HEALTH: Final = {HealthStatus.DRAINING: DRAINING, HealthStatus.UNHEALTHY: UNHEALTHY}
_MAX_STREAMS: Final = 4096
_MAX_PEER_STREAMS: Final = 256
"""Streams of one address, so that none takes all."""
_MAX_REQUESTS: Final = 20
"""Requests that are read from one stream in a second. Envoy sends one for each response, and one for each subscription."""
_SILENCE: Final = 10.0
"""Seconds from the beginning of a stream to its first request."""
_GOODBYE: Final = 0.5
"""Seconds for streams to end when the server stops: they never end by themselves."""


class EdsListenError(AdsumError):
    """The port cannot be listened on."""


@dataclass(frozen=True, slots=True)
class ServerTls:
    """A folder with tls.crt and tls.key, and the CA of clients' certificates. Read again at each handshake."""

    folder: Path
    client_ca: Path | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """Raises ValueError if the files cannot be served."""
        try:
            served = self._read()
        except OSError as error:  # ssl.SSLError too
            name = self.folder if error.filename is None else error.filename
            problem = f"--cert-path, --client-ca-file: cannot use {name}: {error.strerror}"
            expected = "expected a folder with tls.crt and tls.key, and a file of PEM certificates"
            raise ValueError(f"{problem}; {expected}") from error

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            nonlocal served
            try:
                now = self._read()
            except OSError:
                return None  # what was served is served on until the files can be used again
            if now == served:
                return None
            served = now
            return _configuration(*now)

        return grpc.dynamic_ssl_server_credentials(
            _configuration(*served),
            renewed,  # type: ignore[arg-type]  # None means unchanged; the stubs lack it
            self.client_ca is not None,
        )

    def _read(self) -> tuple[bytes, bytes, bytes | None]:
        """Raises OSError for files that are missing, or that OpenSSL rejects."""
        key, chain = self.folder / "tls.key", self.folder / "tls.crt"
        checked = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        key_text, chain_text = key.read_bytes(), chain.read_bytes()
        checked.load_cert_chain(chain, key)
        if self.client_ca is None:
            return key_text, chain_text, None
        authorities = self.client_ca.read_bytes()
        checked.load_verify_locations(self.client_ca)
        return key_text, chain_text, authorities


def _configuration(key: bytes, chain: bytes, client_ca: bytes | None) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(key, chain)], client_ca)


class EdsServer:
    """An async context manager. `publish` tells every Envoy of a new assignment; before the first one nobody is answered, so
    that an Envoy keeps what it had."""

    def __init__(self, host: str, port: int, cluster: str, tls: ServerTls | None = None) -> None:
        self._tls = tls
        self._host = host
        self._port = port
        self._cluster = cluster
        self._response: DiscoveryResponse | None = None
        self._streams: set[EdsStream] = set()
        self._log = RateLimitedLog(log)
        self._server = aio.server(options=_OPTIONS, maximum_concurrent_rpcs=_MAX_STREAMS)
        self._server.add_generic_rpc_handlers((_handlers(self),))

    @property
    def address(self) -> str:
        """With the port that is listened on."""
        return authority(self._host, self._port)

    async def __aenter__(self) -> Self:
        try:
            self._port = (
                self._server.add_insecure_port(self.address)
                if self._tls is None
                else self._server.add_secure_port(self.address, self._tls.credentials())
            )
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
        stream = EdsStream(self._cluster, context, self._log)
        if sum(one.address == stream.address for one in self._streams) >= _MAX_PEER_STREAMS:
            self._log.warning(
                "peer", "%s has %d streams, more are refused", stream.address, _MAX_PEER_STREAMS
            )
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"at most {_MAX_PEER_STREAMS} streams of one address"
            )
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
            self._log.warning(
                "unreadable", "%s sent what is no DiscoveryRequest; expected Envoy's xDS v3", stream.address
            )
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "expected a DiscoveryRequest")
        except TimeoutError:
            problem = f"no request came within {_SILENCE:g} s"
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, problem)
        finally:
            self._streams.discard(stream)
            await cancel_and_wait(reading)

    async def check(self, _: HealthCheckRequest, __: "aio.ServicerContext[Any, Any]") -> HealthCheckResponse:
        return HealthCheckResponse(status=_NOT_SERVING if self._response is None else _SERVING)


class EdsStream:
    """What one Envoy asked for and got. `changed` is set when it asks, leaves, or a new assignment is there."""

    def __init__(
        self, cluster: str, context: "aio.ServicerContext[Any, Any]", limited_log: RateLimitedLog
    ) -> None:
        self.address = context.peer().rpartition(":")[0]
        """Without the port: `ipv4:10.0.0.1`."""
        self._log = limited_log
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
            async with asyncio.timeout(_SILENCE):
                request = await self._context.read()
            for number in itertools.count(1):
                if request is aio.EOF:
                    return
                self._receive(request)
                if number % _MAX_REQUESTS == 0:
                    await asyncio.sleep(1)  # what else it sends waits in its windows
                request = await self._context.read()
        finally:
            self.changed.set()

    def _receive(self, request: DiscoveryRequest) -> None:
        if request.node.id:  # Envoy may send it in the first request only
            self._who = quoted(request.node.id, 100)
        if request.response_nonce and request.response_nonce != self._nonce:
            return  # it answers an older response than the last one (xds_protocol, "ACK, NACK, and resource type instance version")
        if request.HasField("error_detail"):
            why = quoted(request.error_detail.message, 500)
            self._log.log(
                logging.ERROR, "refused", "%s refused the endpoints and keeps what it had: %s", self._who, why
            )
        names = list(request.resource_names)
        wanted = not names or self._cluster in names
        if wanted and not self._subscribed:
            self._told = None
            log.info("%s asks for the endpoints", self._who)
        if not wanted and not request.response_nonce:
            self._log.warning(
                "cluster", "%s asks for the cluster %s, and is told nothing: this is %s; see --cluster-name",
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
