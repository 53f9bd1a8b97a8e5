"""The clusters of the workers: how Envoy follows a pick, and when it sends a request a second time."""

from collections.abc import Sequence

from epp.envoy.json_values import Json, typed_config, unlimited_circuit_breakers
from epp.ext_proc.protocol import METADATA_NAMESPACE
from epp.request.control_headers import DESTINATION, FALLBACK, SERVED

WORKERS = "workers"
"""The cluster that the route names."""
LISTED = "listed"
"""The cluster of all workers that Envoy is told of."""
_PICKED, _FALLBACK = "picked", "fallback"
_OURS = "adsum"
"""The namespace of the metadata that this configuration makes for itself."""
_FIRST, _REST = "first", "rest"

_RETRY_ON = "connect-failure,refused-stream,reset,retriable-status-codes"
_REFUSED = 503
"""Only what has not begun, or whose work is lost anyway as its worker is: an answer that is made twice costs twice. So a 503,
by which a server says that it does not handle the request now (RFC 9110 section 15.6.4), and no other status.

https://www.envoyproxy.io/docs/envoy/latest/configuration/http/http_filters/router_filter#x-envoy-retry-on
"""


def override_host(hosts: Json) -> Json:
    """A cluster with `hosts`, its fields that say where they are from; Envoy tries the picks in order, then the fallback
    policy."""
    return _override_host_cluster(WORKERS, hosts, _metadata_key(DESTINATION))


def picked_then_listed(hosts: Json, attempts: int) -> list[Json]:
    """The first attempt connects to the address that the picker names first, known to Envoy or not: a pick may come before
    the news of that worker. The others choose among `hosts`: the picker's further choices in order, then any healthy one.

    Without a pick, where that is allowed, a composite cluster goes on to its next cluster in the first attempt (Envoy 1.40).
    """
    return [
        _composite([_PICKED, *[LISTED] * max(1, attempts - 1)]),
        _original_dst_cluster(_PICKED, {"metadata_key": _metadata_key(_FIRST, _OURS)}),
        {
            **_override_host_cluster(LISTED, hosts, _metadata_key(_REST, _OURS)),
            # in panic the fallback policy would choose workers that are not ready; a pick needs no health
            "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        },
    ]


def split_pick() -> Json:
    """The HTTP filter behind ext_proc that takes the picker's list apart, for clusters that connect to an address of it.

    Such a cluster reads one address: of a list it would find none.

    https://www.envoyproxy.io/docs/envoy/latest/configuration/http/http_filters/header_to_metadata_filter
    """
    parts = ((_FIRST, "^([^,]*).*$", "\\1"), (_REST, "^[^,]*,?(.*)$", "\\1"))
    rules = [
        {
            "header": DESTINATION,
            "on_header_present": {
                "metadata_namespace": _OURS,
                "key": key,
                "regex_value_rewrite": {"pattern": {"regex": pattern}, "substitution": part},
            },
        }
        for key, pattern, part in parts
    ]
    config = typed_config("filters.http.header_to_metadata.v3.Config", request_rules=rules)
    return {"name": "envoy.filters.http.header_to_metadata", "typed_config": config}


def original_dst(*, with_fallback: bool) -> list[Json]:
    """A cluster that connects to the address that the picker names first. `with_fallback`: a retry goes to its second
    choice, which the older versions of the protocol name apart."""
    first = {"metadata_key": _metadata_key(_FIRST, _OURS)}
    if not with_fallback:
        return [_original_dst_cluster(WORKERS, first)]
    return [
        _composite([_PICKED, _FALLBACK]),
        _original_dst_cluster(_PICKED, first),
        _original_dst_cluster(_FALLBACK, {"metadata_key": _metadata_key(FALLBACK)}),
    ]


def retry_policy(attempts: int) -> Json:
    """`attempts`: in all, the first one included; each goes to another worker."""
    return {
        "retry_on": _RETRY_ON,
        "retriable_status_codes": [_REFUSED],
        "num_retries": attempts - 1,
        "retry_back_off": {"base_interval": "0.005s", "max_interval": "0.05s"},
        **another_host(),
    }


def another_host() -> Json:
    """Fields of a retry policy. They bind policies that choose among all hosts; `override_host` goes through its list."""
    config = typed_config("retry.host.previous_hosts.v3.PreviousHostsPredicate")
    previous = {"name": "envoy.retry_host_predicates.previous_hosts", "typed_config": config}
    return {"retry_host_predicate": [previous], "host_selection_retry_max_attempts": 3}


def _composite(clusters: Sequence[str]) -> Json:
    """The cluster of the route: each attempt goes to the next of `clusters`. Its circuit breakers bound the retries.

    https://www.envoyproxy.io/docs/envoy/latest/api-v3/extensions/clusters/composite/v3/cluster.proto
    """
    named = [{"name": name} for name in clusters]
    config = typed_config("clusters.composite.v3.ClusterConfig", clusters=named)
    return {
        "name": WORKERS,
        "connect_timeout": "1s",
        "lb_policy": "CLUSTER_PROVIDED",
        "cluster_type": {"name": "envoy.clusters.composite", "typed_config": config},
        "circuit_breakers": unlimited_circuit_breakers(),
    }


def _override_host_cluster(name: str, hosts: Json, picks: Json) -> Json:
    """A host's health counts only for the fallback policy.

    https://www.envoyproxy.io/docs/envoy/latest/api-v3/extensions/load_balancing_policies/override_host/v3/override_host.proto
    """
    override = _load_balancing_policy(
        "override_host",
        "override_host.v3.OverrideHost",
        selected_host_key={"key": METADATA_NAMESPACE, "path": [{"key": SERVED}]},
        override_host_sources=[{"metadata": picks}],
        fallback_policy=_load_balancing_policy("round_robin", "round_robin.v3.RoundRobin"),
    )
    return {"name": name, **hosts, **_connection_settings(), "load_balancing_policy": override}


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


def _metadata_key(name: str, namespace: str = METADATA_NAMESPACE) -> Json:
    return {"key": namespace, "path": [{"key": name}]}


def _load_balancing_policy(name: str, kind: str, **fields: object) -> Json:
    config = {
        "name": f"envoy.load_balancing_policies.{name}",
        "typed_config": typed_config(f"load_balancing_policies.{kind}", **fields),
    }
    return {"policies": [{"typed_extension_config": config}]}
