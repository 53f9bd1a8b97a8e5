"""Renders the Envoy configuration for the picker; the demo, the tests and the charts use no other source.

`override-host` follows any pick first, then the picker's further choices and the other workers that Envoy knows: by EDS,
which the pickers serve. It reports which one served. With a list of workers a pick that is not in it is skipped.
`original-dst` connects to any address that the picker names, so Envoy needs no list of workers. It takes one address,
and with `fallback` a second one if the first cannot be reached.
"""

from collections.abc import Sequence

import yaml

from adsum.units import write_duration
from epp.config.settings import HEALTH_FAILURES, HEALTH_INTERVAL
from epp.envoy import workers
from epp.envoy.access_log import access_log, served_header
from epp.envoy.access_logs import at_the_end, outcome_clusters, outcome_header, outcome_logs, report_interval
from epp.envoy.endpoint_discovery import eds_cluster, eds_from_file, eds_over_grpc
from epp.envoy.json_values import Json, socket_address, static_hosts, typed_config, unlimited_circuit_breakers
from epp.envoy.local_replies import local_replies
from epp.envoy.overload import overload_manager
from epp.envoy.picker_tls import picker_tls
from epp.envoy.settings import EnvoySettings
from epp.envoy.status import admin_cluster, status_listener
from epp.ext_proc.access_log_entry import PICK_NAMESPACE
from epp.ext_proc.protocol import EXT_PROC, METADATA_NAMESPACE, SUBSET_NAMESPACE
from epp.request.control_headers import DATA_PLANE_ONLY, DESTINATION, MOST_TEXT, REQUEST_ID, SUBSET

_PICKER = "picker"
_KEEPALIVE = {"interval": "1s", "timeout": "1.5s"}
"""PINGs to a picker, as fields of config.core.v3.KeepaliveSettings. They alone bound how long an ext_proc stream may be
silent: Envoy does not apply message_timeout to bodies that are FULL_DUPLEX_STREAMED. A frozen picker is noticed after
2.6 s (Envoy adds up to 15 % to an interval), so all attempts together end within 9 s."""
_QUICK_KEEPALIVE = {"interval": "0.15s", "timeout": "0.7s"}
"""The same where a picker that stands still for a moment loses nothing: no stream outlasts its pick, and another picker takes
what has none yet. A frozen one is noticed after 0.9 s. One that is merely busy is not: any frame of it extends the timeout
(api/envoy/config/core/v3/protocol.proto, KeepaliveSettings)."""
_CONNECT_TIMEOUT, _QUICK_CONNECT_TIMEOUT = "1s", "0.8s"
_PICKER_ATTEMPTS = 3
"""Connections to one process of several end one after another when it is killed: a second attempt can meet the next of them."""
_TIMEOUT = "x-envoy-upstream-rq-timeout-ms"
_KEPT_TIMEOUT = "x-adsum-timeout-ms"
"""Where a client's time-out is while Envoy removes the other one."""
_STREAMS = 100
"""Requests at a time on one HTTP/2 connection, as Envoy advises at the edge (configuration/best_practices/edge)."""
_CONNECTION_BUFFER = 256 * 1024
"""Bytes. Envoy advises 32 KiB at the edge, against untrusted clients; prompts are larger than most requests."""


def render(settings: EnvoySettings) -> str:
    """A static bootstrap configuration as YAML, for `envoy --config-path`."""
    # libyaml, if PyYAML was built with it: five times as fast
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return yaml.dump(bootstrap(settings), Dumper=dumper, sort_keys=False, width=110)


def bootstrap(settings: EnvoySettings) -> Json:
    """The same configuration as nested dicts."""
    listeners, clusters = [_listener(settings)], [*_worker_clusters(settings), _picker_cluster(settings)]
    if settings.by_access_log:
        clusters += outcome_clusters(settings, _health_check)
    if settings.status is not None:
        listeners.append(status_listener(settings.status))
        clusters.append(admin_cluster(settings.admin))
    return {
        # Envoy demands a node for EDS; --service-node and --service-cluster win over it
        "node": {"id": "adsum", "cluster": "adsum"},
        "admin": {"address": socket_address(settings.admin), "ignore_global_conn_limit": True},
        "static_resources": {"listeners": listeners, "clusters": clusters},
        "overload_manager": overload_manager(settings.max_connections, settings.max_heap),
    }


def _worker_clusters(settings: EnvoySettings) -> list[Json]:
    if settings.mode == "original-dst":
        return workers.original_dst(with_fallback=settings.fallback)
    if settings.endpoints:
        return [workers.override_host(static_hosts(workers.WORKERS, settings.endpoints))]
    if settings.eds_file is not None:
        return workers.picked_then_listed(eds_from_file(settings.eds_file), settings.attempts)
    if settings.eds_server is not None:
        return [
            *workers.picked_then_listed(eds_over_grpc(), settings.attempts),
            eds_cluster(settings.eds_server),
        ]
    return workers.picked_then_listed(eds_over_grpc(_PICKER), settings.attempts)


def _listener(settings: EnvoySettings) -> Json:
    manager = {"name": "envoy.filters.network.http_connection_manager", "typed_config": _manager(settings)}
    return {
        "name": "inference",
        "address": socket_address(settings.listen),
        "enable_reuse_port": False,  # the default lets a second Envoy bind this port and take half of the connections
        "filter_chains": [{"filters": [manager]}],
        **_connection_buffer(settings),
    }


def _manager(settings: EnvoySettings) -> Json:
    """The filter that serves clients:
    https://www.envoyproxy.io/docs/envoy/latest/configuration/http/http_conn_man/http_conn_man
    """
    return typed_config(
        "filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="inference",
        # https://www.envoyproxy.io/docs/envoy/latest/faq/configuration/timeouts: the defaults are 5 minutes, none,
        # none and 1 hour. An answer that is not streamed is silent for minutes; a body that never ends would be held by
        # the picker; the last one is longer than the idle timeouts of the load balancers of the clouds. Not the retry
        # policy's per_try_idle_timeout: after that Envoy would ask another worker for what took this one so long.
        stream_idle_timeout=settings.stream_idle_timeout,
        request_headers_timeout="10s",
        request_timeout=settings.request_timeout,
        common_http_protocol_options={"idle_timeout": "900s"},
        http2_protocol_options={"max_concurrent_streams": _STREAMS},
        **_access_logs(settings),
        local_reply_config=local_replies(),
        # every answer tells the id that `adsum epp decisions ID` asks for, Envoy's own answers too: the client's, or a new one
        always_set_request_id_in_response=True,
        preserve_external_request_id=True,
        # removed before any other filter runs: a client must not choose its worker, not even while the picker is away
        early_header_mutation_extensions=[
            _early((DESTINATION, *DATA_PLANE_ONLY, *settings.remove_request_headers), settings)
        ],
        route_config={"virtual_hosts": [_virtual_host(settings)]},
        http_filters=[
            *_subset_filters(settings),
            _ext_proc(settings),
            *([] if settings.endpoints else [workers.split_pick()]),
            *([_client_timeout()] if settings.client_timeouts else []),
            _router(),
        ],
    )


def _virtual_host(settings: EnvoySettings) -> Json:
    return {
        "name": "inference",
        "domains": ["*"],
        "routes": _routes(settings),
        # tells the picker of attempts that failed: x-envoy-attempt-count
        "include_attempt_count_in_response": settings.mode == "override-host",
    }


def _access_logs(settings: EnvoySettings) -> Json:
    own = access_log(settings.access_log)
    if not settings.by_access_log:
        return {"access_log": own}
    ended = [{**one, "filter": at_the_end()} for one in own]
    return {"access_log": [*ended, *outcome_logs(settings)], "access_log_options": report_interval()}


def _connection_buffer(settings: EnvoySettings) -> Json:
    """Bounds what one client's connection may buffer. The limit counts for a body that is buffered whole too, where it is not kept
    for another attempt, so there Envoy's 1 MiB stays."""
    whole = {"BUFFERED", "BUFFERED_PARTIAL"} & {settings.request_body, settings.response_body}
    return {} if whole else {"per_connection_buffer_limit_bytes": _CONNECTION_BUFFER}


def _routes(settings: EnvoySettings) -> list[Json]:
    # the default timeout is 15 s and must be off for streamed answers (faq/configuration/timeouts)
    to_workers: Json = {"cluster": workers.WORKERS, "timeout": settings.route_timeout}
    added = {"response_headers_to_add": served_header()} if settings.served_header else {}
    once = {"match": {"prefix": "/"}, "route": to_workers, **added}
    attempts = settings.attempts if settings.mode == "override-host" else 1 + settings.fallback
    if attempts == 1:
        return [once]
    # Envoy 1.40 sends a body that ends with trailers twice, in one attempt, if it keeps the body for another one
    # behind a FULL_DUPLEX_STREAMED ext_proc; RFC 9110 section 6.6.2: who sends trailers should announce them
    announced = {"prefix": "/", "headers": [{"name": "trailer", "present_match": True}]}
    again = {**to_workers, "retry_policy": workers.retry_policy(attempts)}
    kept = {"request_body_buffer_limit": settings.retry_buffer}
    return [{**once, "match": announced}, {**once, "route": again, **kept}]


def _early(removed: Sequence[str], settings: EnvoySettings) -> Json:
    """Changes headers before Envoy removes those that only internal clients may send."""
    mutations: list[Json] = [{"remove": name} for name in removed]
    bounded_id = {"key": REQUEST_ID, "value": f"%REQ({REQUEST_ID}):{MOST_TEXT}%"}
    mutations.append({"append": {"header": bounded_id, "append_action": "OVERWRITE_IF_EXISTS"}})
    if settings.client_timeouts:
        mutations += _moved(_TIMEOUT, _KEPT_TIMEOUT)
    config = typed_config("http.early_header_mutation.header_mutation.v3.HeaderMutation", mutations=mutations)
    return {"name": "envoy.http.early_header_mutation.header_mutation", "typed_config": config}


def _client_timeout() -> Json:
    """The HTTP filter that gives the router a client's time-out.

    Envoy takes it from internal clients only, and these could set retries too
    (https://www.envoyproxy.io/docs/envoy/latest/configuration/http/http_conn_man/header_sanitizing).
    """
    config = typed_config(
        "filters.http.header_mutation.v3.HeaderMutation",
        mutations={"request_mutations": _moved(_KEPT_TIMEOUT, _TIMEOUT)},
    )
    return {"name": "envoy.filters.http.header_mutation", "typed_config": config}


def _moved(old: str, new: str) -> list[Json]:
    header = {"key": new, "value": f"%REQ({old})%"}
    return [
        {"remove": new},
        {"append": {"header": header, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}},
        {"remove": old},
    ]


def _subset_filters(settings: EnvoySettings) -> list[Json]:
    if settings.subset is None:
        return []
    hint = {
        "metadata_namespace": SUBSET_NAMESPACE,
        "allow_overwrite": True,
        "value": {SUBSET: list(settings.subset)},
    }
    config = typed_config("filters.http.set_metadata.v3.Config", metadata=[hint])
    return [{"name": "envoy.filters.http.set_metadata", "typed_config": config}]


def _ext_proc(settings: EnvoySettings) -> Json:
    """The filter that asks the picker.

    https://www.envoyproxy.io/docs/envoy/latest/api-v3/extensions/filters/http/ext_proc/v3/ext_proc.proto
    """
    by_log = settings.by_access_log
    config = typed_config(
        "filters.http.ext_proc.v3.ExternalProcessor",
        grpc_service={
            "envoy_grpc": {"cluster_name": _PICKER},
            "timeout": settings.message_timeout,
            "retry_policy": _picker_retry_policy(),
            **({"initial_metadata": outcome_header()} if by_log else {}),
        },
        message_timeout=settings.message_timeout,
        failure_mode_allow=settings.failure_mode_allow,
        processing_mode={
            "request_header_mode": "SEND",
            "request_body_mode": settings.request_body,
            "request_trailer_mode": "SEND",  # FULL_DUPLEX_STREAMED needs it (processing_mode.proto)
            "response_header_mode": "SKIP" if by_log else "SEND",
            "response_body_mode": settings.response_body,
            "response_trailer_mode": settings.response_trailer,
        },
        metadata_options={  # Envoy silently drops metadata of any other namespace
            "receiving_namespaces": {"untyped": [METADATA_NAMESPACE, *([PICK_NAMESPACE] if by_log else [])]},
            "forwarding_namespaces": {"untyped": [METADATA_NAMESPACE, SUBSET_NAMESPACE]},
        },
    )
    return {"name": "envoy.filters.http.ext_proc", "typed_config": config}


def _router() -> Json:
    return {
        "name": "envoy.filters.http.router",
        "typed_config": typed_config("filters.http.router.v3.Router"),
    }


def _picker_retry_policy() -> Json:
    """The retry policy of the ext_proc stream: another picker, if there is one.

    A second pick is harmless: a picker releases its reservation when its stream ends.
    """
    return {
        "retry_on": "connect-failure,refused-stream,reset",
        "num_retries": _PICKER_ATTEMPTS - 1,
        "retry_back_off": {"base_interval": "0.005s", "max_interval": "0.05s"},
        **workers.another_host(),
    }


def _picker_cluster(settings: EnvoySettings) -> Json:
    quick = settings.by_access_log and settings.several_pickers
    http2 = {"connection_keepalive": _QUICK_KEEPALIVE if quick else _KEEPALIVE}
    cluster: Json = {
        "name": _PICKER,
        **static_hosts(_PICKER, settings.pickers),
        "connect_timeout": _QUICK_CONNECT_TIMEOUT if quick else _CONNECT_TIMEOUT,
        "circuit_breakers": unlimited_circuit_breakers(),
        "health_checks": [_health_check()],
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": typed_config(
                "upstreams.http.v3.HttpProtocolOptions",
                explicit_http_config={"http2_protocol_options": http2},
            )
        },
    }
    if settings.failure_mode_allow:
        # in panic Envoy sends to unhealthy pickers, and a request whose body was on its way to one cannot go on without
        # (https://www.envoyproxy.io/docs/envoy/latest/intro/arch_overview/upstream/load_balancing/panic_threshold)
        cluster["common_lb_config"] = {"healthy_panic_threshold": {"value": 0}}
    if settings.secure:
        cluster["transport_socket"] = picker_tls(settings)
    return cluster


def _health_check() -> Json:
    """Asks for the picker's readiness.

    https://www.envoyproxy.io/docs/envoy/latest/api-v3/config/core/v3/health_check.proto
    """
    return {
        "timeout": "1s",
        "interval": write_duration(HEALTH_INTERVAL),
        "no_traffic_interval": write_duration(HEALTH_INTERVAL),  # of a cluster without traffic: default 60 s
        "unhealthy_threshold": HEALTH_FAILURES,
        "healthy_threshold": 1,
        "grpc_health_check": {"service_name": EXT_PROC},
    }
