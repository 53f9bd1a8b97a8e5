"""The settings of Envoy's configuration: one field for each flag of `python -m epp envoy-config`."""

from collections.abc import Sequence
from dataclasses import dataclass

from adsum.addresses import is_ip
from adsum.quoting import quoted
from epp.envoy.json_values import Address

_LISTEN = Address("127.0.0.1", 8080)
_ADMIN = Address("127.0.0.1", 9901)
_PICKER = Address("127.0.0.1", 9002)
AUTO, EXT_PROC_STREAM, ACCESS_LOG = "auto", "ext-proc", "access-log"
"""How pickers hear what became of requests; `auto`: by the log, unless `EnvoySettings.why_ext_proc` says why not."""


@dataclass(frozen=True, slots=True)
class EnvoySettings:
    """`needs_answers`: what of the pickers' configuration does not work without answers. Files are on Envoy's machine, sizes in
    bytes; the help of each flag says the rest.
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
    outcomes: str = AUTO
    peers: bool = False
    needs_answers: Sequence[str] = ()
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
        """Whether the ext_proc stream ends with the request, and Envoy's access log tells the rest."""
        return self.outcomes != EXT_PROC_STREAM and not self.why_ext_proc

    @property
    def why_ext_proc(self) -> str:
        """Why `auto` is ext-proc: an answer waits for the picker; empty: it is not, or it is not asked for."""
        if self.outcomes != AUTO:
            return ""
        several = [one.host for one in self.pickers if not stands_for_one(one.host)]
        if self.needs_answers:
            return f"the picker's configuration needs answers: {', '.join(self.needs_answers)}"
        if self._sends_answers:
            return (
                "a flag sends answers to the picker: --usage-metrics, --response-body or --response-trailer"
            )
        if (
            self.mode != "override-host"
            or self.endpoints
            or self.eds_file is not None
            or self.eds_server is not None
        ):
            return "Envoy does not hear of the workers from the picker, which may not be ours"
        if several and not self.peers:
            return (
                f"{quoted(several[0])} may stand for several pickers, of which Envoy's log reaches one: give --peers if they know "
                "each other, or --outcomes access-log if it is one"
            )
        return ""

    @property
    def several_pickers(self) -> bool:
        """A name may stand for several."""
        return len(self.pickers) > 1 or not stands_for_one(self.pickers[0].host)

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


def stands_for_one(host: str) -> bool:
    """Whether it is the address of one picker: behind a name may be several, of which an Envoy's log reaches one."""
    return host == "localhost" or is_ip(host)
