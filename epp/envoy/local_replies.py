"""Envoy's own error answers in the form of the OpenAI API. By default they are plain text or empty.

https://www.envoyproxy.io/docs/envoy/latest/configuration/http/http_conn_man/local_reply
"""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from epp.envoy.json_values import Json, typed_config
from epp.ext_proc.protocol import PROXY_STATUS

_RETRY = {"retry-after": "1"}  # seconds
# details tell what flags do not (HTTP connection manager, response code details)
_OVERLOADED = "response.code_details == 'overload'"
_SILENT = "response.code_details == 'stream_idle_timeout' && response.code == 504 && upstream.address != ''"
"""A worker has the whole request: without a worker it waits at the picker, and with 408 for the rest from its client."""


def local_replies() -> Json:
    """The field `local_reply_config`; the first mapper that matches rewrites the answer.

    The picker's rejections are local replies too. They keep their body: they have none of these flags, and never status 500 or
    504. Envoy answers 500 if the ext_proc stream fails and 504 if it is too slow, or silent for the stream's idle timeout; we
    answer 503, since neither the client nor a worker is at fault. `proxy-status` (RFC 9209) tells the picker which workers to
    avoid.
    """
    return {
        "mappers": [
            _reply(_flags("UT"), 504, "worker_timeout", "the worker did not answer in time",
                   {PROXY_STATUS: "envoy; error=http_response_timeout"}),
            _reply(_expression(_SILENT), 504, "worker_timeout", "no byte of the answer came from the worker in time",
                   {PROXY_STATUS: "envoy; error=http_response_timeout"}),
            _reply(_flags("UF", "UH"), 503, "worker_unreachable", "no worker could be reached",
                   {**_RETRY, PROXY_STATUS: "envoy; error=destination_unavailable"}),
            _reply(_flags("UC", "UR", "UPE"), 502, "worker_failed", "the worker ended the connection before it answered",
                   {PROXY_STATUS: "envoy; error=connection_terminated"}),
            _reply(_expression(_OVERLOADED), 503, "proxy_overloaded", "the proxy has no memory left for more requests", _RETRY),
            _reply(_status(500), 503, "picker_unavailable", "the endpoint picker failed or cannot be reached", _RETRY),
            _reply(_status(504), 503, "picker_timeout", "the endpoint picker did not answer in time", _RETRY),
            _reply(_status(408), 408, "request_timeout", "the request was not complete in time"),
        ]
    }  # fmt: skip


def _reply(
    when: Json, status: int, code: str, message: str, headers: Mapping[str, str] = MappingProxyType({})
) -> Json:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    body = json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})
    reply: Json = {
        "filter": when,
        "status_code": status,
        "body_format_override": {
            "text_format_source": {"inline_string": body},
            "content_type": "application/json",
        },
    }
    if headers:
        reply["headers_to_add"] = [
            {"header": {"key": name, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
            for name, value in headers.items()
        ]
    return reply


def _flags(*flags: str) -> Json:
    """Match any of these RESPONSE_FLAGS.

    https://www.envoyproxy.io/docs/envoy/latest/configuration/advanced/substitution_formatter
    """
    named: Sequence[str] = flags
    return {"response_flag_filter": {"flags": list(named)}}


def _status(status: int) -> Json:
    value = {"default_value": status, "runtime_key": f"adsum.local_reply.{status}"}
    return {"status_code_filter": {"comparison": {"op": "EQ", "value": value}}}


def _expression(text: str) -> Json:
    """Match by a CEL expression over Envoy's attributes; one that is absent makes it false.

    https://www.envoyproxy.io/docs/envoy/latest/intro/arch_overview/advanced/attributes
    """
    config = typed_config("access_loggers.filters.cel.v3.ExpressionFilter", expression=text)
    return {
        "extension_filter": {"name": "envoy.access_loggers.extension_filters.cel", "typed_config": config}
    }
