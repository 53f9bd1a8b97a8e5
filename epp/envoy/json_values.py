"""Values that several parts of Envoy's configuration share: addresses, `typed_config`, listed hosts, circuit breakers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adsum.addresses import is_ip, split_authority

Json = dict[str, Any]

_TYPES = "type.googleapis.com/envoy.extensions."
_NO_LIMIT = 100_000
"""Envoy's default is 1,024 connections, pending requests and requests per cluster, and 3 retries. One picker serves more.

https://www.envoyproxy.io/docs/envoy/latest/api-v3/config/cluster/v3/circuit_breaker.proto
"""


@dataclass(frozen=True, slots=True)
class Address:
    """`host` is an IP address or a name; IPv6 without brackets."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Read `host:port` or `[ip6]:port`; raises ValueError."""
        host, port = split_authority(text, min_port=0, expected="HOST:PORT")
        return cls(host, port)

    @property
    def is_ip(self) -> bool:
        return is_ip(self.host)


def typed_config(kind: str, **fields: object) -> Json:
    """A `typed_config`; `kind` is the message's name without `envoy.extensions.`."""
    return {"@type": _TYPES + kind, **fields}


def socket_address(address: Address) -> Json:
    return {"socket_address": {"address": address.host, "port_value": address.port}}


def static_hosts(cluster: str, addresses: Sequence[Address]) -> Json:
    """The fields of a cluster with these hosts: STATIC for IP addresses, STRICT_DNS if any is a name."""
    endpoints = [{"endpoint": {"address": socket_address(address)}} for address in addresses]
    return {
        "type": "STATIC" if all(address.is_ip for address in addresses) else "STRICT_DNS",
        "load_assignment": {"cluster_name": cluster, "endpoints": [{"lb_endpoints": endpoints}]},
    }


def unlimited_circuit_breakers() -> Json:
    """The field `circuit_breakers` of a cluster, with limits that are never reached: the picker limits the load."""
    limits = ("max_connections", "max_pending_requests", "max_requests", "max_retries")
    return {"thresholds": [dict.fromkeys(limits, _NO_LIMIT)]}
