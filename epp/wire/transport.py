"""The interface of both gRPC servers: `Transport`, its `Listener`s, and the address that one listens on."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, Self, TypeAlias

from adsum.addresses import authority
from adsum.serving.handing import HandedSocket
from adsum.serving.sockets import ListenError
from discovery.eds.subscription import Publication
from epp.config.tls_rules import TlsRules
from epp.ext_proc.outcome_ledger import OutcomeLedger
from epp.wire.certificate import Certificate

StreamEnded: TypeAlias = Callable[[str, float], None]
"""Called with each ext_proc stream that is over: its status as gRPC's libraries for Go write it, and how many seconds it lasted."""


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """`host` is an IP address without brackets; "::" is every interface, IPv4 included. Port 0 is any free port.

    `max_message` is in bytes. `handed`: connections come by it; another process listens.
    """

    host: str
    port: int
    certificate: Certificate | None = None
    max_message: int = 4 * 1024 * 1024
    tls: TlsRules = field(default_factory=TlsRules)
    handed: HandedSocket | None = None

    def authority(self, port: int) -> str:
        """`host:port`, IPv6 in brackets."""
        return authority(self.host, port)

    def listen_error(self) -> ListenError:
        """The same error from both servers: grpc does not name the cause."""
        where = self.authority(self.port)
        return ListenError(f"cannot listen on {where}: it is taken or not an address of this machine")


class Listener(Protocol):
    """An async context manager: entering listens and serves or raises ListenError; leaving stops at once."""

    @property
    def port(self) -> int: ...

    @property
    def address(self) -> str:
        """`host:port`, IPv6 in brackets."""

    async def drain(self, timeout: float | None) -> None:
        """Refuse new streams. Open ones get `timeout` seconds to end by themselves; None ends them at once."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *_: object) -> None: ...


class Transport(Protocol):
    """ext_proc, endpoint discovery, the access log service and grpc.health.v1 over one kind of gRPC server."""

    @property
    def assignments(self) -> Publication:
        """The answers to Envoys that ask for endpoints."""

    @property
    def open_streams(self) -> int:
        """The number of open ext_proc streams."""

    @property
    def opened_at(self) -> float:
        """When the last ext_proc stream was opened, in the clock's seconds; -inf before the first."""

    def await_outcomes(self, outcomes: OutcomeLedger) -> None:
        """Serve the access log service, whose logs tell `outcomes` what became of picks. To be called before `listener`."""

    def drain(self) -> None:
        """End each stream with OK as soon as its response headers are answered and no body passes through it. Envoys that asked
        for endpoints are sent to another picker."""

    def listener(self, address: ListenAddress, *, processing: bool) -> Listener:
        """A port that serves grpc.health.v1, and ext_proc and endpoint discovery if `processing`."""
