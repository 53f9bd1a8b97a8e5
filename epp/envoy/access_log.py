"""Envoy's access log: one line of JSON a request, with the worker that was picked and the one that served."""

from epp.envoy.json_values import Json, typed
from epp.ext_proc.protocol import METADATA_NAMESPACE
from epp.request.control_headers import DESTINATION, SERVED

_FIELDS = {
    "time": "%START_TIME%",
    "method": "%REQ(:METHOD)%",
    "path": "%PATH(NQ)%",  # a query may hold a key
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
    """`access_log` of the connection manager; an empty path is none."""
    if not path:
        return []
    config = typed(
        "access_loggers.file.v3.FileAccessLog", path=path, log_format={"json_format": dict(_FIELDS)}
    )
    return [{"name": "envoy.access_loggers.file", "typed_config": config}]


def served_header() -> list[Json]:
    """`response_headers_to_add`: the worker's address, on answers of workers only."""
    header = {"key": SERVED, "value": "%UPSTREAM_REMOTE_ADDRESS%"}
    return [{"header": header, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}]
