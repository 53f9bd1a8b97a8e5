"""The words of Envoy's configuration that several parts of it use."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runtime.addresses import is_ip, split_authority

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
        host, port = split_authority(text, min_port=0, expected="HOST:PORT")
        return cls(host, port)

    @property
    def is_ip(self) -> bool:
        """Whether `host` needs no resolver."""
        return is_ip(self.host)


def typed(kind: str, **fields: object) -> Json:
    """A `typed_config`; `kind` is what follows `envoy.extensions.`."""
    return {"@type": _TYPES + kind, **fields}


def socket(address: Address) -> Json:
    """As core.v3.Address."""
    return {"socket_address": {"address": address.host, "port_value": address.port}}


def hosts(cluster: str, addresses: Sequence[Address]) -> Json:
    """The fields of a cluster that has these hosts and no others."""
    endpoints = [{"endpoint": {"address": socket(address)}} for address in addresses]
    return {
        "type": "STATIC" if all(address.is_ip for address in addresses) else "STRICT_DNS",
        "load_assignment": {"cluster_name": cluster, "endpoints": [{"lb_endpoints": endpoints}]},
    }


def no_breakers() -> Json:
    """Limits of a cluster that nothing reaches."""
    limits = ("max_connections", "max_pending_requests", "max_requests", "max_retries")
    return {"thresholds": [dict.fromkeys(limits, _NO_LIMIT)]}
