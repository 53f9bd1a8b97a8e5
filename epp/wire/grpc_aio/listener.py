"""A grpc.aio server on one port."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

import grpc
from grpc import aio

from epp.wire.certificate import Certificate
from epp.wire.transport import ListenAddress


class GrpcListener:
    def __init__(self, handlers: Sequence[grpc.GenericRpcHandler], address: ListenAddress) -> None:
        self._handlers = handlers
        self._listen_address = address
        self.port = address.port
        self._server: aio.Server | None = None

    @property
    def address(self) -> str:
        return self._listen_address.authority(self.port)

    async def __aenter__(self) -> Self:
        options = [
            ("grpc.max_receive_message_length", self._listen_address.max_message),
            # on Linux the default lets two processes share a port, without an error
            ("grpc.so_reuseport", 0),
        ]
        server = aio.server(options=options)
        server.add_generic_rpc_handlers(tuple(self._handlers))
        try:
            self.port = self._add_port(server)
        except RuntimeError as error:
            raise self._listen_address.listen_error() from error
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
        address = self._listen_address
        if address.certificate is None:
            return server.add_insecure_port(self.address)
        return server.add_secure_port(self.address, _credentials(address.certificate))


def _credentials(certificate: Certificate) -> grpc.ServerCredentials:
    """grpc asks for the certificate at every handshake, so a reloaded one is served to the next client."""
    served = certificate.pair, certificate.client_ca

    def configuration() -> grpc.ServerCertificateConfiguration:
        pair, client_ca = served
        return grpc.ssl_server_certificate_configuration([(pair.key, pair.certificate)], client_ca)

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal served
        now = certificate.pair, certificate.client_ca
        if now == served:
            return None
        served = now
        return configuration()

    return grpc.dynamic_ssl_server_credentials(
        configuration(),
        renewed,  # type: ignore[arg-type]  # None means unchanged (grpc.dynamic_ssl_server_credentials); the stubs lack it
        certificate.client_ca is not None,
    )
