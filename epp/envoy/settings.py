"""What the Envoy configuration is told, one field for each flag of `python -m epp envoy-config`."""

from collections.abc import Sequence
from dataclasses import dataclass

from epp.envoy.json_values import Address

_LISTEN = Address("127.0.0.1", 8080)
_ADMIN = Address("127.0.0.1", 9901)
_PICKER = Address("127.0.0.1", 9002)


@dataclass(frozen=True, slots=True)
class EnvoySettings:
    """`endpoints` are the hosts that override-host may use; `subset` puts the subset hint on every request.

    `fallback`: original-dst goes to the picker's second choice where the first cannot be reached. `request_timeout` is
    what a client has for its whole request, the body included. `access_log` is a file on Envoy's machine, "" is none.
    `client_cert`, `client_key`: PEM files on Envoy's machine, what it shows to a picker that asks for a certificate.
    """

    mode: str = "original-dst"
    listen: Address = _LISTEN
    admin: Address = _ADMIN
    pickers: Sequence[Address] = (_PICKER,)
    endpoints: Sequence[Address] = ()
    subset: Sequence[str] | None = None
    request_body: str = "FULL_DUPLEX_STREAMED"
    response_body: str = "NONE"
    response_trailer: str = "SKIP"
    failure_mode_allow: bool = False
    secure: bool = True
    client_cert: str | None = None
    client_key: str | None = None
    message_timeout: str = "10s"
    route_timeout: str = "0s"
    request_timeout: str = "60s"
    fallback: bool = False
    access_log: str = "/dev/stdout"
    served_header: bool = True

    def __post_init__(self) -> None:
        if self.mode == "override-host" and not self.endpoints:
            raise ValueError("override-host needs the workers' addresses: give --endpoint HOST:PORT for each")
        if self.mode == "original-dst" and self.endpoints:
            raise ValueError("original-dst takes no --endpoint: Envoy goes wherever the picker says")
        if self.mode == "override-host" and self.fallback:
            raise ValueError("override-host takes no --fallback: it follows the picker's list as it is")
        if (self.client_cert is None) != (self.client_key is None):
            raise ValueError("a client certificate is two files: give --client-cert and --client-key")
        if self.client_cert is not None and not self.secure:
            raise ValueError("--client-cert needs --secure: without TLS no certificates are shown")
        if self.response_body == "FULL_DUPLEX_STREAMED" and self.response_trailer != "SEND":
            raise ValueError(
                "Envoy allows FULL_DUPLEX_STREAMED response bodies only with --response-trailer SEND"
            )
