"""The Envoy configuration that goes with the picker; demo, tests and charts have no other source.

`original-dst` sends a request to whatever address the picker names: nothing has to be known beforehand, one address
per request. `override-host` picks among the hosts of a cluster and walks an ordered list when one does not answer; it
reports who served. A picked host that the cluster does not know falls back to another one, so it must list them all.
"""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from epp.control_headers import DESTINATION, SERVED, SUBSET, UNSEEN
from epp.duration import write_duration
from epp.protocol import EXT_PROC, METADATA_NAMESPACE, SUBSET_NAMESPACE
from epp.settings import HEALTH_FAILURES, HEALTH_INTERVAL

Json = dict[str, Any]

_TYPES = "type.googleapis.com/envoy.extensions."
_NO_LIMIT = (
    100_000  # Envoy's default circuit breaker lets 1,024 requests through, fewer than one picker serves
)


@dataclass(frozen=True, slots=True)
class Address:
    """Where something listens; `host` is an IP or a name, IPv6 without brackets."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Read `host:port` or `[ip6]:port`; raises ValueError."""
        host, _, port = text.rpartition(":")
        if not host or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
            raise ValueError(f"{text!r} is not HOST:PORT")
        if ":" in host and not host.startswith("["):
            raise ValueError(f"{text!r} is not HOST:PORT; write an IPv6 address as [address]:port")
        return cls(host.strip("[]"), int(port))

    @property
    def is_ip(self) -> bool:
        """Whether `host` needs no resolver."""
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class EnvoySettings:
    """`endpoints` are the hosts that override-host may use; `subset` puts the subset hint on every request.

    `client_cert`, `client_key`: PEM files on Envoy's machine, what it shows to a picker that asks for a certificate.
    """

    mode: str = "original-dst"
    listen: Address = Address("127.0.0.1", 8080)
    admin: Address = Address("127.0.0.1", 9901)
    pickers: Sequence[Address] = (Address("127.0.0.1", 9002),)
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

    def __post_init__(self) -> None:
        if self.mode == "override-host" and not self.endpoints:
            raise ValueError("override-host needs the workers' addresses: give --endpoint HOST:PORT for each")
        if self.mode == "original-dst" and self.endpoints:
            raise ValueError("original-dst takes no --endpoint: Envoy goes wherever the picker says")
        if (self.client_cert is None) != (self.client_key is None):
            raise ValueError("a client certificate is two files: give --client-cert and --client-key")
        if self.client_cert is not None and not self.secure:
            raise ValueError("--client-cert needs --secure: without TLS no certificates are shown")
        if self.response_body == "FULL_DUPLEX_STREAMED" and self.response_trailer != "SEND":
            raise ValueError(
                "Envoy allows FULL_DUPLEX_STREAMED response bodies only with --response-trailer SEND"
            )


def render(settings: EnvoySettings) -> str:
    """A static bootstrap as YAML, for `envoy --config-path`."""
    return yaml.safe_dump(bootstrap(settings), sort_keys=False, width=110)


def bootstrap(settings: EnvoySettings) -> Json:
    """The same as nested dicts."""
    workers = _override_host(settings) if settings.mode == "override-host" else _original_dst()
    return {
        "admin": {"address": _socket(settings.admin)},
        "static_resources": {"listeners": [_listener(settings)], "clusters": [workers, _picker(settings)]},
    }


def _listener(settings: EnvoySettings) -> Json:
    manager = _typed(
        "filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="inference",
        stream_idle_timeout="3600s",  # a long answer that is not streamed says nothing for minutes
        # what a client sends under these names must steer nothing, not even while the picker is away
        early_header_mutation_extensions=[_remove((DESTINATION, *UNSEEN))],
        route_config={
            "virtual_hosts": [{"name": "inference", "domains": ["*"], "routes": [_route(settings)]}]
        },
        http_filters=[*_subset_filter(settings), _ext_proc(settings), _router()],
    )
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    return {
        "name": "inference",
        "address": _socket(settings.listen),
        "enable_reuse_port": False,  # else a second Envoy on this port takes half of the connections, without a word
        "filter_chains": [chain],
    }


def _route(settings: EnvoySettings) -> Json:
    route: Json = {"cluster": "workers", "timeout": settings.route_timeout}
    if settings.mode == "override-host":
        route["retry_policy"] = {
            "retry_on": "connect-failure,refused-stream,reset-before-request,gateway-error",
            "num_retries": 2,
            "host_selection_retry_max_attempts": 3,
        }
    return {"match": {"prefix": "/"}, "route": route}


def _remove(headers: Sequence[str]) -> Json:
    config = _typed(
        "http.early_header_mutation.header_mutation.v3.HeaderMutation",
        mutations=[{"remove": name} for name in headers],
    )
    return {"name": "envoy.http.early_header_mutation.header_mutation", "typed_config": config}


def _subset_filter(settings: EnvoySettings) -> list[Json]:
    if settings.subset is None:
        return []
    hint = {
        "metadata_namespace": SUBSET_NAMESPACE,
        "allow_overwrite": True,
        "value": {SUBSET: list(settings.subset)},
    }
    config = _typed("filters.http.set_metadata.v3.Config", metadata=[hint])
    return [{"name": "envoy.filters.http.set_metadata", "typed_config": config}]


def _ext_proc(settings: EnvoySettings) -> Json:
    config = _typed(
        "filters.http.ext_proc.v3.ExternalProcessor",
        grpc_service={"envoy_grpc": {"cluster_name": "picker"}, "timeout": settings.message_timeout},
        message_timeout=settings.message_timeout,
        failure_mode_allow=settings.failure_mode_allow,
        processing_mode={
            "request_header_mode": "SEND",
            "request_body_mode": settings.request_body,
            "request_trailer_mode": "SEND",
            "response_header_mode": "SEND",
            "response_body_mode": settings.response_body,
            "response_trailer_mode": settings.response_trailer,
        },
        metadata_options={  # without receiving_namespaces Envoy drops the pick's metadata and says nothing
            "receiving_namespaces": {"untyped": [METADATA_NAMESPACE]},
            "forwarding_namespaces": {"untyped": [METADATA_NAMESPACE, SUBSET_NAMESPACE]},
        },
    )
    return {"name": "envoy.filters.http.ext_proc", "typed_config": config}


def _router() -> Json:
    return {"name": "envoy.filters.http.router", "typed_config": _typed("filters.http.router.v3.Router")}


def _original_dst() -> Json:
    return {
        "name": "workers",
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "connect_timeout": "1s",
        "circuit_breakers": _breakers(),
        "original_dst_lb_config": {"use_http_header": True, "http_header_name": DESTINATION},
    }


def _override_host(settings: EnvoySettings) -> Json:
    fallback = _policy("round_robin", "round_robin.v3.RoundRobin")
    override = _policy(
        "override_host",
        "override_host.v3.OverrideHost",
        selected_host_key={"key": METADATA_NAMESPACE, "path": [{"key": SERVED}]},
        override_host_sources=[{"metadata": {"key": METADATA_NAMESPACE, "path": [{"key": DESTINATION}]}}],
        fallback_policy=fallback,
    )
    return {
        "name": "workers",
        **_hosts("workers", settings.endpoints),
        "connect_timeout": "1s",
        "circuit_breakers": _breakers(),
        "load_balancing_policy": override,
    }


def _policy(name: str, kind: str, **fields: object) -> Json:
    config = {
        "name": f"envoy.load_balancing_policies.{name}",
        "typed_config": _typed(f"load_balancing_policies.{kind}", **fields),
    }
    return {"policies": [{"typed_extension_config": config}]}


def _picker(settings: EnvoySettings) -> Json:
    cluster: Json = {
        "name": "picker",
        **_hosts("picker", settings.pickers),
        "connect_timeout": "1s",
        "circuit_breakers": _breakers(),
        "health_checks": [_health_check()],
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": _typed(
                "upstreams.http.v3.HttpProtocolOptions", explicit_http_config={"http2_protocol_options": {}}
            )
        },
    }
    if settings.secure:  # no validation context: the picker's own certificate is self-signed
        newest = {"tls_maximum_protocol_version": "TLSv1_3"}  # without it an Envoy asks with TLS 1.2 at most
        tls = {"alpn_protocols": ["h2"], "tls_params": newest, **_client_certificate(settings)}
        context = _typed("transport_sockets.tls.v3.UpstreamTlsContext", common_tls_context=tls)
        cluster["transport_socket"] = {"name": "envoy.transport_sockets.tls", "typed_config": context}
    return cluster


def _client_certificate(settings: EnvoySettings) -> Json:
    if settings.client_cert is None:
        return {}
    files = {"certificate_chain": settings.client_cert, "private_key": settings.client_key}
    return {"tls_certificates": [{name: {"filename": path} for name, path in files.items()}]}


def _health_check() -> Json:
    return {
        "timeout": "1s",
        "interval": write_duration(HEALTH_INTERVAL),
        "no_traffic_interval": write_duration(HEALTH_INTERVAL),
        "unhealthy_threshold": HEALTH_FAILURES,
        "healthy_threshold": 1,
        "grpc_health_check": {"service_name": EXT_PROC},
    }


def _hosts(cluster: str, addresses: Sequence[Address]) -> Json:
    hosts = [{"endpoint": {"address": _socket(address)}} for address in addresses]
    return {
        "type": "STATIC" if all(address.is_ip for address in addresses) else "STRICT_DNS",
        "load_assignment": {"cluster_name": cluster, "endpoints": [{"lb_endpoints": hosts}]},
    }


def _breakers() -> Json:
    limits = ("max_connections", "max_pending_requests", "max_requests", "max_retries")
    return {"thresholds": [dict.fromkeys(limits, _NO_LIMIT)]}


def _socket(address: Address) -> Json:
    return {"socket_address": {"address": address.host, "port_value": address.port}}


def _typed(kind: str, **fields: object) -> Json:
    return {"@type": _TYPES + kind, **fields}
