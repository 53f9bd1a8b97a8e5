"""What the picker sees of either gRPC server."""

from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from epp.config.tls_rules import TlsRules
from epp.wire.certificate import Certificate
from runtime.addresses import authority
from runtime.serving.sockets import ListenError


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where to listen; `host` is an IP without brackets, "::" is every interface, IPv4 too; port 0 is any free one.

    `max_message` is in bytes. With `client_ca`, PEM, only clients that show a certificate of it are served.
    """

    host: str
    port: int
    certificate: Certificate | None = None
    client_ca: bytes | None = None
    max_message: int = 4 * 1024 * 1024
    tls: TlsRules = field(default_factory=TlsRules)

    def address(self, port: int) -> str:
        """`host:port`, IPv6 in brackets."""
        return authority(self.host, port)

    def refused(self) -> ListenError:
        """The one error, whatever the system says."""
        where = self.address(self.port)
        return ListenError(f"cannot listen on {where}: it is taken or not an address of this machine")


class Listener(Protocol):
    """Entering listens and serves, leaving stops at once; raises ListenError."""

    @property
    def port(self) -> int: ...

    @property
    def address(self) -> str:
        """`host:port`, IPv6 in brackets."""

    async def drain(self, timeout: float | None) -> None:
        """Take no new streams; those that are open get `timeout` seconds to end by themselves, none for None."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Transport(Protocol):
    """ext_proc and grpc.health.v1 over one kind of gRPC server."""

    @property
    def open_streams(self) -> int:
        """How many ext_proc streams are open now."""

    @property
    def opened_at(self) -> float:
        """When the last ext_proc stream was opened, in the clock's seconds."""

    def drain(self) -> None:
        """End each stream, with OK, as soon as its response headers are answered and no body passes through it."""

    def listener(self, place: ListenAddress, *, processing: bool) -> Listener:
        """One port with health, and with ext_proc where `processing`."""
