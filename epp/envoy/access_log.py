"""Envoy's access log: one line of JSON per request, with the worker that was picked and the one that served.

The operators: https://www.envoyproxy.io/docs/envoy/latest/configuration/advanced/substitution_formatter
"""

from epp.envoy.json_values import Json, typed_config
from epp.ext_proc.protocol import METADATA_NAMESPACE
from epp.request.control_headers import DESTINATION, SERVED

_FIELDS = {
    "time": "%START_TIME%",
    "method": "%REQ(:METHOD)%",
    "path": "%PATH(NQ)%",  # NQ: without the query, which may hold an API key
    "status": "%RESPONSE_CODE%",
    "flags": "%RESPONSE_FLAGS%",
    "details": "%RESPONSE_CODE_DETAILS%",
    "duration_ms": "%DURATION%",
    "first_byte_ms": "%RESPONSE_DURATION%",
    "bytes_in": "%BYTES_RECEIVED%",
    "bytes_out": "%BYTES_SENT%",
    "picked": f"%DYNAMIC_METADATA({METADATA_NAMESPACE}:{DESTINATION})%",
    "served": "%UPSTREAM_REMOTE_ADDRESS%",
    "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
    "request_id": "%REQ(X-REQUEST-ID)%",
    "client": "%DOWNSTREAM_REMOTE_ADDRESS%",
}


def access_log(path: str) -> list[Json]:
    """The field `access_log` of the connection manager; an empty path disables it."""
    if not path:
        return []
    config = typed_config(
        "access_loggers.file.v3.FileAccessLog", path=path, log_format={"json_format": dict(_FIELDS)}
    )
    return [{"name": "envoy.access_loggers.file", "typed_config": config}]


def served_header() -> list[Json]:
    """The field `response_headers_to_add`: the worker's address; not on Envoy's own answers, which have none."""
    header = {"key": SERVED, "value": "%UPSTREAM_REMOTE_ADDRESS%"}
    return [{"header": header, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}]
