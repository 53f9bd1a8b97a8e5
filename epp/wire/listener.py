"""A grpc.aio server on one port."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

import grpc
from grpc import aio

from epp.certificate import KeyPair


class ListenError(Exception):
    """A port that cannot be listened on; the message names it."""


class Listener:
    """Entering listens and serves `handlers`, leaving stops at once; `port` 0 is any free one, `port` then says which.

    `host` is an IP without brackets, "::" is every interface, IPv4 too. `max_message` is in bytes.
    """

    def __init__(
        self,
        handlers: Sequence[grpc.GenericRpcHandler],
        host: str,
        port: int,
        *,
        tls: KeyPair | None,
        max_message: int,
    ) -> None:
        self._handlers = handlers
        self._address = f"[{host}]" if ":" in host else host
        self.port = port
        self._tls = tls
        self._max_message = max_message
        self._server: aio.Server | None = None

    @property
    def address(self) -> str:
        """`host:port`, IPv6 in brackets."""
        return f"{self._address}:{self.port}"

    async def __aenter__(self) -> Self:
        options = [
            ("grpc.max_receive_message_length", self._max_message),
            ("grpc.so_reuseport", 0),  # a port that somebody else has is an error, not a share of the traffic
        ]
        server = aio.server(options=options)
        server.add_generic_rpc_handlers(tuple(self._handlers))
        try:
            self.port = self._add_port(server)
        except RuntimeError as error:
            raise ListenError(
                f"cannot listen on {self.address}: it is taken or not an address of this machine"
            ) from error
        await server.start()
        self._server = server
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop(None)

    async def stop(self, grace: float | None) -> None:
        """Take no new streams; those that are open get `grace` seconds to end by themselves."""
        if self._server is not None:
            await self._server.stop(grace)

    def _add_port(self, server: aio.Server) -> int:
        if self._tls is None:
            return server.add_insecure_port(self.address)
        credentials = grpc.ssl_server_credentials([(self._tls.key, self._tls.certificate)])
        return server.add_secure_port(self.address, credentials)
