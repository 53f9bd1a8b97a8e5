"""A port for probes and Prometheus: `/ready` and `/stats/prometheus`, and nothing else of Envoy's admin interface."""

from epp.envoy.json_values import Address, Json, socket_address, static_hosts, typed_config

_ADMIN = "admin"
_METRICS = "/stats/prometheus"


def status_listener(address: Address) -> Json:
    """Listens once all clusters are warm, the pickers' first health check included.

    https://www.envoyproxy.io/docs/envoy/latest/intro/arch_overview/operations/init
    """
    manager = typed_config(
        "filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="status",
        request_headers_timeout="10s",
        common_http_protocol_options={"idle_timeout": "60s"},
        route_config={
            "virtual_hosts": [
                {
                    "name": "status",
                    "domains": ["*"],
                    "routes": [{"match": {"path": _METRICS}, "route": {"cluster": _ADMIN}}],
                }
            ]
        },
        http_filters=[
            _ready(),
            {
                "name": "envoy.filters.http.router",
                "typed_config": typed_config("filters.http.router.v3.Router"),
            },
        ],
    )
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    return {
        "name": "status",
        "address": socket_address(address),
        "filter_chains": [chain],
        # clients who take all connections must not make the probes fail
        "ignore_global_conn_limit": True,
        "bypass_overload_manager": True,
    }


def admin_cluster(admin: Address) -> Json:
    return {"name": _ADMIN, "connect_timeout": "1s", **static_hosts(_ADMIN, [admin])}


def _ready() -> Json:
    """200, or 503 after a POST to `/healthcheck/fail` of the admin interface.

    https://www.envoyproxy.io/docs/envoy/latest/configuration/http/http_filters/health_check_filter
    """
    config = typed_config(
        "filters.http.health_check.v3.HealthCheck",
        pass_through_mode=False,
        headers=[{"name": ":path", "string_match": {"exact": "/ready"}}],
    )
    return {"name": "envoy.filters.http.health_check", "typed_config": config}
