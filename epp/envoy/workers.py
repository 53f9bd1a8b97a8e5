"""The clusters of the workers: how Envoy follows a pick, and when it sends a request a second time."""

from epp.envoy.json_values import Json, typed_config, unlimited_circuit_breakers
from epp.ext_proc.protocol import METADATA_NAMESPACE
from epp.request.control_headers import DESTINATION, FALLBACK, SERVED

WORKERS = "workers"
"""The cluster that the route names."""
_PICKED, _FALLBACK = "picked", "fallback"

_RETRY_ON = "connect-failure,refused-stream,reset"
"""Only if nobody answered: a killed worker's work is lost anyway. Never on a 5xx: an answer that is made twice costs twice.

https://www.envoyproxy.io/docs/envoy/latest/configuration/http/http_filters/router_filter#x-envoy-retry-on
"""


def override_host(hosts: Json) -> Json:
    """A cluster with `hosts`, its fields that say where they are from; Envoy tries the picks in order, then the fallback
    policy. A host's health counts only for that policy.

    https://www.envoyproxy.io/docs/envoy/latest/api-v3/extensions/load_balancing_policies/override_host/v3/override_host.proto
    """
    fallback = _load_balancing_policy("round_robin", "round_robin.v3.RoundRobin")
    override = _load_balancing_policy(
        "override_host",
        "override_host.v3.OverrideHost",
        selected_host_key={"key": METADATA_NAMESPACE, "path": [{"key": SERVED}]},
        override_host_sources=[{"metadata": _metadata_key(DESTINATION)}],
        fallback_policy=fallback,
    )
    return {"name": WORKERS, **hosts, **_connection_settings(), "load_balancing_policy": override}


def original_dst(*, with_fallback: bool) -> list[Json]:
    """A cluster that connects to the address that the picker names. `with_fallback`: a retry goes to its second choice.

    A composite cluster sends the first attempt to its first cluster and the retry to its second one
    (https://www.envoyproxy.io/docs/envoy/latest/api-v3/extensions/clusters/composite/v3/cluster.proto).
    """
    header = {"use_http_header": True, "http_header_name": DESTINATION}
    if not with_fallback:
        return [_original_dst_cluster(WORKERS, header)]
    attempts = typed_config(
        "clusters.composite.v3.ClusterConfig", clusters=[{"name": _PICKED}, {"name": _FALLBACK}]
    )
    in_turn = {
        "name": WORKERS,
        "connect_timeout": "1s",
        "lb_policy": "CLUSTER_PROVIDED",
        "cluster_type": {"name": "envoy.clusters.composite", "typed_config": attempts},
    }
    return [
        in_turn,
        _original_dst_cluster(_PICKED, header),
        _original_dst_cluster(_FALLBACK, {"metadata_key": _metadata_key(FALLBACK)}),
    ]


def retry_policy(attempts: int) -> Json:
    """`attempts`: in all, the first one included; each goes to another worker."""
    return {
        "retry_on": _RETRY_ON,
        "num_retries": attempts - 1,
        "retry_back_off": {"base_interval": "0.005s", "max_interval": "0.05s"},
        **another_host(),
    }


def another_host() -> Json:
    """Fields of a retry policy. They bind policies that choose among all hosts; `override_host` goes through its list."""
    config = typed_config("retry.host.previous_hosts.v3.PreviousHostsPredicate")
    previous = {"name": "envoy.retry_host_predicates.previous_hosts", "typed_config": config}
    return {"retry_host_predicate": [previous], "host_selection_retry_max_attempts": 3}


def _original_dst_cluster(name: str, destination: Json) -> Json:
    return {
        "name": name,
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        **_connection_settings(),
        "original_dst_lb_config": destination,
    }


def _connection_settings() -> Json:
    """A worker whose machine is gone sends nothing, and the route has no timeout by default: only keep-alive probes end the
    wait, 60 s after the last byte."""
    probes = {"keepalive_time": 30, "keepalive_interval": 10, "keepalive_probes": 3}
    return {
        "connect_timeout": "1s",
        "circuit_breakers": unlimited_circuit_breakers(),
        "upstream_connection_options": {"tcp_keepalive": probes},
    }


def _metadata_key(name: str) -> Json:
    return {"key": METADATA_NAMESPACE, "path": [{"key": name}]}


def _load_balancing_policy(name: str, kind: str, **fields: object) -> Json:
    config = {
        "name": f"envoy.load_balancing_policies.{name}",
        "typed_config": typed_config(f"load_balancing_policies.{kind}", **fields),
    }
    return {"policies": [{"typed_extension_config": config}]}
