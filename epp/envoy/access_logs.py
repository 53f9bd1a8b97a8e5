"""How pickers hear what became of requests where the ext_proc stream ends with the request: each gets Envoy's access log.

https://www.envoyproxy.io/docs/envoy/latest/api-v3/extensions/access_loggers/grpc/v3/als.proto
"""

from collections.abc import Callable
from typing import Final

from adsum.units import write_duration
from epp.envoy.json_values import Json, static_hosts, typed_config
from epp.envoy.picker_tls import picker_tls
from epp.envoy.settings import EnvoySettings, stands_for_one
from epp.ext_proc.access_log_entry import (
    BODY_TAG,
    BY_ACCESS_LOG,
    OUTCOMES_HEADER,
    PICK_KEY,
    PICK_NAMESPACE,
    REPORT_INTERVAL,
    REPORTED_SHARE,
)
from epp.request.control_headers import PREFILL_FALLBACK

_FLUSH: Final = "0.03s"
_BUFFER: Final = 256 * 1024
"""Bytes of entries that one worker thread keeps for one picker; what comes while it is full is dropped and counted
(`access_logs.grpc_access_log.logs_dropped`). An entry has some 580 bytes."""


def outcome_header() -> list[Json]:
    """The field `initial_metadata` of the service that ext_proc calls: tells the picker to await the log."""
    return [{"key": OUTCOMES_HEADER, "value": BY_ACCESS_LOG}]


def outcome_logs(settings: EnvoySettings) -> list[Json]:
    """One access log for each picker: every one hears of all picks, and knows its own."""
    return [_access_log(at) for at in range(len(settings.pickers))]


def outcome_clusters(settings: EnvoySettings, health_check: Callable[[], Json]) -> list[Json]:
    """`health_check`: makes that of a picker."""
    return [_cluster(at, settings, health_check) for at in range(len(settings.pickers))]


def report_interval() -> Json:
    """The field `access_log_options` of the connection manager: an occasion for an entry, `_reported` says which are used."""
    return {"access_log_flush_interval": write_duration(REPORT_INTERVAL)}


def at_the_end() -> Json:
    """The filter of an access log that gets one entry for each request."""
    return {"log_type_filter": {"types": ["DownstreamEnd"]}}


def _reported() -> Json:
    """The filter of entries of requests under way: the first one, which says whether the answer has begun, and a share of the
    further ones, since a long answer shall not cost an entry a second."""
    # before the second occasion, however late a busy Envoy is with the first one
    most = {"default_value": int(1900 * REPORT_INTERVAL), "runtime_key": "adsum.first_report_ms"}
    share = {
        "runtime_key": "adsum.reported_share",
        "percent_sampled": {"numerator": REPORTED_SHARE, "denominator": "HUNDRED"},
        "use_independent_randomness": True,
    }
    first = {"duration_filter": {"comparison": {"op": "LE", "value": most}}}
    either = {"or_filter": {"filters": [first, {"runtime_filter": share}]}}
    return {"and_filter": {"filters": [{"log_type_filter": {"types": ["DownstreamPeriodic"]}}, either]}}


def _access_log(at: int) -> Json:
    picked = {
        "matcher": {"filter": PICK_NAMESPACE, "path": [{"key": PICK_KEY}], "value": {"present_match": True}},
        "match_if_key_not_found": False,
    }
    common = {
        "log_name": "adsum",
        "transport_api_version": "V3",
        "buffer_flush_interval": _FLUSH,
        "buffer_size_bytes": _BUFFER,
        # an entry itself says only when the headers came; "=" is there in any case, so that none of the body is told from no tag
        "custom_tags": [{"tag": BODY_TAG, "value": "=%COMMON_DURATION(DS_RX_BEG:US_RX_BODY_BEG:us)%"}],
        "grpc_service": {"envoy_grpc": {"cluster_name": _name(at)}},
    }
    return {
        "name": "envoy.access_loggers.http_grpc",
        "filter": {
            "and_filter": {
                "filters": [
                    {"metadata_filter": picked},
                    {"or_filter": {"filters": [at_the_end(), _reported()]}},
                ]
            }
        },
        "typed_config": typed_config(
            "access_loggers.grpc.v3.HttpGrpcAccessLogConfig",
            common_config=common,
            additional_response_headers_to_log=[PREFILL_FALLBACK],
        ),
    }


def _cluster(at: int, settings: EnvoySettings, health_check: Callable[[], Json]) -> Json:
    """The cluster of one picker's log. A picker that stands still for a while gets its entries when it goes on; if others have the
    same name, one of them gets what comes meanwhile."""
    picker = settings.pickers[at]
    alone = stands_for_one(picker.host)
    keepalive = {"interval": "10s", "timeout": "10s"} if alone else {"interval": "1s", "timeout": "1.5s"}
    cluster = {
        "name": _name(at),
        **static_hosts(_name(at), [picker]),
        "connect_timeout": "1s",
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": typed_config(
                "upstreams.http.v3.HttpProtocolOptions",
                explicit_http_config={"http2_protocol_options": {"connection_keepalive": keepalive}},
            )
        },
        **({} if alone else {"health_checks": [health_check()]}),
    }
    if settings.secure:
        cluster["transport_socket"] = picker_tls(settings)
    return cluster


def _name(at: int) -> str:
    return f"outcomes-{at + 1}"
