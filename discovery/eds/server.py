"""Serves the assignment to Envoys over gRPC: endpoint discovery, state of the world, and grpc.health.v1 for probes.

https://www.envoyproxy.io/docs/envoy/latest/api-docs/xds_protocol
"""

import asyncio
import itertools
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from adsum.addresses import authority
from adsum.tasks import cancel_and_wait
from discovery.eds.messages.eds_pb2 import (
    DiscoveryRequest,
    DiscoveryResponse,
    HealthCheckRequest,
    HealthCheckResponse,
)
from discovery.eds.subscription import MAX_PEER_STREAMS, METHOD, SERVICE, EndpointSubscription, Publication
from discovery.errors import AdsumError

_SERVING, _NOT_SERVING = 1, 2
_OPTIONS: Final = [
    ("grpc.so_reuseport", 0),  # the default lets a second process take half of the Envoys
    ("grpc.max_receive_message_length", 1024 * 1024),
    ("grpc.max_concurrent_streams", 32),  # an Envoy has one for each cluster that it asks for here
    ("grpc.keepalive_time_ms", 30_000),  # an Envoy whose machine is gone
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),  # Envoy's PINGs; more often is "too_many_pings"
]
_MAX_STREAMS: Final = 4096
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


class EndpointService:
    """StreamEndpoints for a server of grpc.aio: one call for each Envoy, for as long as it is connected."""

    def __init__(self, publication: Publication) -> None:
        self._publication = publication

    def handlers(self) -> dict[str, "grpc.RpcMethodHandler[DiscoveryRequest, DiscoveryResponse]"]:
        """The methods of the service, by name."""
        return {
            METHOD: grpc.stream_stream_rpc_method_handler(
                self._stream,
                request_deserializer=DiscoveryRequest.FromString,
                response_serializer=DiscoveryResponse.SerializeToString,
            )
        }

    async def _stream(self, _: object, context: "aio.ServicerContext[Any, Any]") -> None:
        address = context.peer().rpartition(":")[0]  # without the port: `ipv4:10.0.0.1`
        limited, changed = self._publication.limited_log, asyncio.Event()
        if not self._publication.admit(address, changed.set):
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"at most {MAX_PEER_STREAMS} streams of one address"
            )
        try:
            await self._converse(context, changed)
        except DecodeError:
            limited.warning(
                "unreadable", "%s sent what is no DiscoveryRequest; expected Envoy's xDS v3", address
            )
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "expected a DiscoveryRequest")
        except TimeoutError:
            problem = f"no request came within {_SILENCE:g} s"
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, problem)
        finally:
            self._publication.leave(address, changed.set)

    async def _converse(self, context: "aio.ServicerContext[Any, Any]", changed: asyncio.Event) -> None:
        publication, subscription = self._publication, EndpointSubscription(self._publication)
        reading = asyncio.create_task(_read(context, subscription, changed), name="read from an Envoy")
        try:
            while not reading.done():
                changed.clear()
                if publication.closed:
                    break
                if (response := subscription.next_response()) is not None:
                    await context.write(response)
                await changed.wait()
            else:
                await reading
                return
        finally:
            await cancel_and_wait(reading)
        # not before: a read that is under way would end with the AbortError too, and nobody would retrieve it there
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the server is shutting down")


async def _read(
    context: "aio.ServicerContext[Any, Any]", subscription: EndpointSubscription, changed: asyncio.Event
) -> None:
    """Until the Envoy ends the stream."""
    try:
        async with asyncio.timeout(_SILENCE):
            request = await context.read()
        for number in itertools.count(1):
            if request is aio.EOF:
                return
            subscription.receive(request)
            changed.set()
            if number % _MAX_REQUESTS == 0:
                await asyncio.sleep(1)  # what else it sends waits in its windows
            request = await context.read()
    finally:
        changed.set()


class EdsServer:
    """An async context manager; `publish` as of a Publication."""

    def __init__(self, host: str, port: int, cluster: str, tls: ServerTls | None = None) -> None:
        self._tls = tls
        self._host = host
        self._port = port
        self._publication = Publication(cluster)
        self.publish = self._publication.publish
        check = grpc.unary_unary_rpc_method_handler(
            self._check,
            request_deserializer=HealthCheckRequest.FromString,
            response_serializer=HealthCheckResponse.SerializeToString,
        )
        self._server = aio.server(options=_OPTIONS, maximum_concurrent_rpcs=_MAX_STREAMS)
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(SERVICE, EndpointService(self._publication).handlers()),
                grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": check}),
            )
        )

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

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(_GOODBYE)

    async def _check(self, _: HealthCheckRequest, __: "aio.ServicerContext[Any, Any]") -> HealthCheckResponse:
        return HealthCheckResponse(status=_NOT_SERVING if self._publication.response is None else _SERVING)
