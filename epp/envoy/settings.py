"""The settings of Envoy's configuration: one field for each flag of `python -m epp envoy-config`."""

from collections.abc import Sequence
from dataclasses import dataclass

from adsum.addresses import is_ip
from epp.envoy.json_values import Address

_LISTEN = Address("127.0.0.1", 8080)
_ADMIN = Address("127.0.0.1", 9901)
_PICKER = Address("127.0.0.1", 9002)
AUTO, EXT_PROC_STREAM, ACCESS_LOG = "auto", "ext-proc", "access-log"
"""How pickers hear what became of requests; `auto`: see `EnvoySettings.by_access_log`."""


@dataclass(frozen=True, slots=True)
class EnvoySettings:
    """`endpoints`, `eds_file`, `eds_server`: where override-host has its hosts from, one of them, if not from the pickers.
    `attempts`: of one request at the workers. `retry_buffer`: bytes of a request that Envoy keeps for another attempt. `subset`: a subset hint for every request.
    `outcomes`: how pickers hear what became of requests.

    `fallback`: original-dst tries the picker's second choice if the first cannot be reached. `request_timeout`: for a
    client to send its whole request, body included. `stream_idle_timeout`: without a byte of an answer. `client_timeouts`: clients say how long their answers may take. `access_log`: a file on Envoy's machine, "" for none.
    `client_cert`, `client_key`: PEM files on Envoy's machine, for a picker that asks for a client certificate.
    `remove_request_headers`: names of what clients must not say. `max_connections`: of all clients together. `max_heap`: bytes; Envoy refuses requests shortly before.
    `ca_file`: a PEM file there; None: any certificate of a picker is accepted. `status`: `/ready` and Prometheus' page.
    """

    mode: str = "override-host"
    listen: Address = _LISTEN
    admin: Address = _ADMIN
    status: Address | None = None
    pickers: Sequence[Address] = (_PICKER,)
    endpoints: Sequence[Address] = ()
    eds_file: str | None = None
    eds_server: Address | None = None
    attempts: int = 3
    retry_buffer: int = 16 * 1024 * 1024
    subset: Sequence[str] | None = None
    outcomes: str = EXT_PROC_STREAM
    request_body: str = "FULL_DUPLEX_STREAMED"
    response_body: str = "NONE"
    response_trailer: str = "SKIP"
    failure_mode_allow: bool = False
    secure: bool = True
    client_cert: str | None = None
    client_key: str | None = None
    ca_file: str | None = None
    message_timeout: str = "10s"
    route_timeout: str = "0s"
    stream_idle_timeout: str = "900s"
    client_timeouts: bool = False
    request_timeout: str = "60s"
    fallback: bool = False
    access_log: str = "/dev/stdout"
    served_header: bool = True
    remove_request_headers: Sequence[str] = ()
    max_connections: int = 10_000
    max_heap: int = 2 * 1024 * 1024 * 1024

    @property
    def by_access_log(self) -> bool:
        """Whether the ext_proc stream ends with the request, and Envoy's access log tells the rest.

        `auto`: where nothing of an answer is sent, each address is one picker, and Envoy hears of the workers from them, so
        that they are ours.
        """
        if self.outcomes != AUTO:
            return self.outcomes == ACCESS_LOG
        elsewhere = self.endpoints or self.eds_file is not None or self.eds_server is not None
        ours = self.mode == "override-host" and not elsewhere
        return ours and not self._sends_answers and all(_is_one(one.host) for one in self.pickers)

    @property
    def several_pickers(self) -> bool:
        """A name may stand for several."""
        return len(self.pickers) > 1 or not _is_one(self.pickers[0].host)

    @property
    def _sends_answers(self) -> bool:
        return self.response_body != "NONE" or self.response_trailer != "SKIP"

    def __post_init__(self) -> None:
        """Raises ValueError for settings that contradict each other."""
        self._check_workers()
        self._check_tls()
        if self.by_access_log and self._sends_answers:
            raise ValueError(
                "--outcomes access-log sends no answers to the picker; leave out --usage-metrics, --response-body and "
                "--response-trailer, or give --outcomes ext-proc"
            )
        if self.status is not None and self.admin.port == 0:
            raise ValueError("--status-port needs --admin-port: the port 0 is not known before Envoy runs")
        if self.response_body == "FULL_DUPLEX_STREAMED" and self.response_trailer != "SEND":
            raise ValueError(
                "Envoy allows FULL_DUPLEX_STREAMED response bodies only with --response-trailer SEND"
            )

    def _check_workers(self) -> None:
        given = [
            name
            for name, value in (
                ("--endpoint", self.endpoints),
                ("--eds-file", self.eds_file),
                ("--eds-server", self.eds_server),
            )
            if value
        ]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} both say where the workers are; give one of them")
        if self.mode == "original-dst" and given:
            raise ValueError(
                f"original-dst takes no {given[0]}: Envoy connects to any address that the picker names"
            )
        if self.mode == "override-host" and self.fallback:
            raise ValueError(
                "--fallback needs --mode original-dst: override-host always tries the picker's whole list"
            )

    def _check_tls(self) -> None:
        if (self.client_cert is None) != (self.client_key is None):
            raise ValueError("a client certificate is two files; give --client-cert and --client-key")
        if self.client_cert is not None and not self.secure:
            raise ValueError("--client-cert needs --secure: without TLS there are no certificates")
        if self.ca_file is not None and not self.secure:
            raise ValueError("--ca-file needs --secure: without TLS there are no certificates")


def _is_one(host: str) -> bool:
    """Whether it stands for one picker: behind a name may be several, of which an Envoy's log would reach one."""
    return host == "localhost" or is_ip(host)
