"""The workers in Envoy's configuration: how a pick is followed, and when a request is sent a second time."""

from collections.abc import Sequence

from epp.envoy.json_values import Address, Json, hosts, no_breakers, typed
from epp.ext_proc.protocol import METADATA_NAMESPACE
from epp.request.control_headers import DESTINATION, FALLBACK, SERVED

WORKERS = "workers"
"""The cluster that the route names."""
_PICKED, _FALLBACK = "picked", "fallback"

_RETRY_ON = "connect-failure,refused-stream,reset-before-request"
"""Only where the worker has not begun: an inference request that is sent twice is paid twice, so never on a 5xx.

https://www.envoyproxy.io/docs/envoy/latest/configuration/http/http_filters/router_filter#x-envoy-retry-on
"""


def override_host(endpoints: Sequence[Address]) -> list[Json]:
    """One cluster of listed hosts, in which an ordered list of picks is walked."""
    fallback = _policy("round_robin", "round_robin.v3.RoundRobin")
    override = _policy(
        "override_host",
        "override_host.v3.OverrideHost",
        selected_host_key={"key": METADATA_NAMESPACE, "path": [{"key": SERVED}]},
        override_host_sources=[{"metadata": _metadata(DESTINATION)}],
        fallback_policy=fallback,
    )
    return [{"name": WORKERS, **hosts(WORKERS, endpoints), **_reached(), "load_balancing_policy": override}]


def original_dst(*, with_fallback: bool) -> list[Json]:
    """A cluster that goes wherever the picker says; `with_fallback`: the second attempt goes to its second choice."""
    header = {"use_http_header": True, "http_header_name": DESTINATION}
    if not with_fallback:
        return [_anywhere(WORKERS, header)]
    attempts = typed("clusters.composite.v3.ClusterConfig", clusters=[{"name": _PICKED}, {"name": _FALLBACK}])
    in_turn = {
        "name": WORKERS,
        "connect_timeout": "1s",
        "lb_policy": "CLUSTER_PROVIDED",
        "cluster_type": {"name": "envoy.clusters.composite", "typed_config": attempts},
    }
    return [
        in_turn,
        _anywhere(_PICKED, header),
        _anywhere(_FALLBACK, {"metadata_key": _metadata(FALLBACK)}),
    ]


def retry_policy(attempts: int) -> Json:
    """Up to that many attempts in all, each at another worker."""
    return {
        "retry_on": _RETRY_ON,
        "num_retries": attempts - 1,
        "retry_back_off": {"base_interval": "0.005s", "max_interval": "0.05s"},
    }


def _anywhere(name: str, destination: Json) -> Json:
    return {
        "name": name,
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        **_reached(),
        "original_dst_lb_config": destination,
    }


def _reached() -> Json:
    """A worker whose machine is gone says nothing: without probes its answer would be waited for until the route's
    timeout, and there is none."""
    probes = {"keepalive_time": 30, "keepalive_interval": 10, "keepalive_probes": 3}
    return {
        "connect_timeout": "1s",
        "circuit_breakers": no_breakers(),
        "upstream_connection_options": {"tcp_keepalive": probes},
    }


def _metadata(name: str) -> Json:
    return {"key": METADATA_NAMESPACE, "path": [{"key": name}]}


def _policy(name: str, kind: str, **fields: object) -> Json:
    config = {
        "name": f"envoy.load_balancing_policies.{name}",
        "typed_config": typed(f"load_balancing_policies.{kind}", **fields),
    }
    return {"policies": [{"typed_extension_config": config}]}
