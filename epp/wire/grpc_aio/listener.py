"""A grpc.aio server on one port."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

import grpc
from grpc import aio

from epp.wire.certificate import Certificate, KeyPair
from epp.wire.transport import ListenAddress


class GrpcListener:
    def __init__(self, handlers: Sequence[grpc.GenericRpcHandler], place: ListenAddress) -> None:
        self._handlers = handlers
        self._place = place
        self.port = place.port
        self._server: aio.Server | None = None

    @property
    def address(self) -> str:
        return self._place.address(self.port)

    async def __aenter__(self) -> Self:
        options = [
            ("grpc.max_receive_message_length", self._place.max_message),
            ("grpc.so_reuseport", 0),  # a port that somebody else has is an error, not a share of the traffic
        ]
        server = aio.server(options=options)
        server.add_generic_rpc_handlers(tuple(self._handlers))
        try:
            self.port = self._add_port(server)
        except RuntimeError as error:
            raise self._place.refused() from error
        await server.start()
        self._server = server
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.drain(None)

    async def drain(self, timeout: float | None) -> None:
        if self._server is not None:
            await self._server.stop(timeout)

    def _add_port(self, server: aio.Server) -> int:
        place = self._place
        if place.certificate is None:
            return server.add_insecure_port(self.address)
        return server.add_secure_port(self.address, _credentials(place.certificate, place.client_ca))


def _credentials(certificate: Certificate, client_ca: bytes | None) -> grpc.ServerCredentials:
    """Asked for at every handshake, so that another certificate is served as soon as there is one."""
    served = certificate.pair

    def configuration(pair: KeyPair) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(pair.key, pair.certificate)], client_ca)

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal served
        if certificate.pair is served:
            return None
        served = certificate.pair
        return configuration(served)

    return grpc.dynamic_ssl_server_credentials(
        configuration(served),
        renewed,  # type: ignore[arg-type]  # None is "as it was", says grpc, not its stubs
        client_ca is not None,
    )
