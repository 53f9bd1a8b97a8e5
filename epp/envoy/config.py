"""The Envoy configuration that goes with the picker; demo, tests and charts have no other source.

`original-dst` sends a request to whatever address the picker names: nothing has to be known beforehand. It takes one
address, and with `fallback` a second one where the first cannot be reached. `override-host` picks among the hosts of a
cluster and walks an ordered list when one does not answer; it reports who served. A picked host that the cluster does
not know falls back to another one, so it must list them all.
"""

from collections.abc import Sequence

import yaml

from epp.config.settings import HEALTH_FAILURES, HEALTH_INTERVAL
from epp.envoy.access_log import access_log, served_header
from epp.envoy.json_values import Json, hosts, no_breakers, socket, typed
from epp.envoy.local_replies import local_replies
from epp.envoy.settings import EnvoySettings
from epp.envoy.workers import WORKERS, original_dst, override_host, retry_policy
from epp.ext_proc.protocol import EXT_PROC, METADATA_NAMESPACE, SUBSET_NAMESPACE
from epp.request.control_headers import DATA_PLANE_ONLY, DESTINATION, SUBSET
from runtime.durations import write_duration

_KEEPALIVE = {"interval": "1s", "timeout": "1.5s"}
"""PINGs to a picker. Its ext_proc streams have no other bound: Envoy does not apply message_timeout where the body is
FULL_DUPLEX_STREAMED. Both attempts together end within 5 s."""
_PICKER_ATTEMPTS = 2


def render(settings: EnvoySettings) -> str:
    """A static bootstrap as YAML, for `envoy --config-path`."""
    return yaml.safe_dump(bootstrap(settings), sort_keys=False, width=110)


def bootstrap(settings: EnvoySettings) -> Json:
    """The same as nested dicts."""
    if settings.mode == "override-host":
        workers = override_host(settings.endpoints)
    else:
        workers = original_dst(with_fallback=settings.fallback)
    return {
        "admin": {"address": socket(settings.admin)},
        "static_resources": {"listeners": [_listener(settings)], "clusters": [*workers, _picker(settings)]},
    }


def _listener(settings: EnvoySettings) -> Json:
    manager = typed(
        "filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="inference",
        stream_idle_timeout="3600s",  # a long answer that is not streamed says nothing for minutes
        request_headers_timeout="10s",
        request_timeout=settings.request_timeout,  # a body that never ends would be held by the picker
        common_http_protocol_options={"idle_timeout": "900s"},  # longer than the load balancers of the clouds
        access_log=access_log(settings.access_log),
        local_reply_config=local_replies(),
        # what a client sends under these names must steer nothing, not even while the picker is away
        early_header_mutation_extensions=[_remove((DESTINATION, *DATA_PLANE_ONLY))],
        route_config={
            "virtual_hosts": [{"name": "inference", "domains": ["*"], "routes": [_route(settings)]}]
        },
        http_filters=[*_subset_filter(settings), _ext_proc(settings), _router()],
    )
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    return {
        "name": "inference",
        "address": socket(settings.listen),
        "enable_reuse_port": False,  # else a second Envoy on this port takes half of the connections, without a word
        "filter_chains": [chain],
    }


def _route(settings: EnvoySettings) -> Json:
    route: Json = {"cluster": WORKERS, "timeout": settings.route_timeout}
    if settings.mode == "override-host":
        route["retry_policy"] = retry_policy(attempts=3)
    elif settings.fallback:
        route["retry_policy"] = retry_policy(attempts=2)
    added = {"response_headers_to_add": served_header()} if settings.served_header else {}
    return {"match": {"prefix": "/"}, "route": route, **added}


def _remove(headers: Sequence[str]) -> Json:
    config = typed(
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
    config = typed("filters.http.set_metadata.v3.Config", metadata=[hint])
    return [{"name": "envoy.filters.http.set_metadata", "typed_config": config}]


def _ext_proc(settings: EnvoySettings) -> Json:
    config = typed(
        "filters.http.ext_proc.v3.ExternalProcessor",
        grpc_service={
            "envoy_grpc": {"cluster_name": "picker"},
            "timeout": settings.message_timeout,
            "retry_policy": _another_picker(),
        },
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
    return {"name": "envoy.filters.http.router", "typed_config": typed("filters.http.router.v3.Router")}


def _another_picker() -> Json:
    """A pick may be asked for twice: what the picker that failed had reserved is given back when its stream ends."""
    return {
        "retry_on": "connect-failure,refused-stream,reset",
        "num_retries": _PICKER_ATTEMPTS - 1,
        "retry_back_off": {"base_interval": "0.005s", "max_interval": "0.05s"},
        "retry_host_predicate": [
            {
                "name": "envoy.retry_host_predicates.previous_hosts",
                "typed_config": typed("retry.host.previous_hosts.v3.PreviousHostsPredicate"),
            }
        ],
        "host_selection_retry_max_attempts": 3,
    }


def _picker(settings: EnvoySettings) -> Json:
    http2 = {"connection_keepalive": _KEEPALIVE}
    cluster: Json = {
        "name": "picker",
        **hosts("picker", settings.pickers),
        "connect_timeout": "1s",
        "circuit_breakers": no_breakers(),
        "health_checks": [_health_check()],
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": typed(
                "upstreams.http.v3.HttpProtocolOptions",
                explicit_http_config={"http2_protocol_options": http2},
            )
        },
    }
    if settings.secure:  # no validation context: the picker's own certificate is self-signed
        newest = {"tls_maximum_protocol_version": "TLSv1_3"}  # without it an Envoy asks with TLS 1.2 at most
        tls = {"alpn_protocols": ["h2"], "tls_params": newest, **_client_certificate(settings)}
        context = typed("transport_sockets.tls.v3.UpstreamTlsContext", common_tls_context=tls)
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
