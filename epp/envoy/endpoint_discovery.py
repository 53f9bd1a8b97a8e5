"""How Envoy learns the workers' addresses by EDS: over gRPC from the pickers or another server, or from a file that it watches.

https://www.envoyproxy.io/docs/envoy/latest/api-v3/config/core/v3/config_source.proto
"""

from typing import Final

from epp.envoy.json_values import Address, Json, static_hosts, typed_config
from epp.envoy.workers import WORKERS

_SERVER: Final = "eds"
_FIRST_ANSWER: Final = "1s"
"""Within which Envoy has the workers before it listens, or begins without: the first attempt of a request needs no list."""


def eds_from_file(path: str) -> Json:
    """The fields of a cluster. Envoy starts only if the file is there, and reads it again when one is moved to its place."""
    return _eds({"path_config_source": {"path": path}})


def eds_over_grpc(cluster: str = _SERVER) -> Json:
    """The fields of a cluster; `cluster` is the one to ask. While it is away Envoy keeps the workers that it has, and asks
    again after 5 s at most; its own default is 30 s."""
    again = {"retry_back_off": {"base_interval": "0.5s", "max_interval": "5s"}}
    source = {
        "api_type": "GRPC",
        "transport_api_version": "V3",
        "grpc_services": [{"envoy_grpc": {"cluster_name": cluster}, "retry_policy": again}],
        "set_node_on_first_message_only": True,
    }
    return _eds({"api_config_source": source, "initial_fetch_timeout": _FIRST_ANSWER})


def eds_cluster(server: Address) -> Json:
    """The cluster of the server itself. Its PINGs notice one that is frozen or whose machine is gone."""
    http2 = {"connection_keepalive": {"interval": "10s", "timeout": "5s"}}
    return {
        "name": _SERVER,
        **static_hosts(_SERVER, [server]),
        "connect_timeout": "1s",
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": typed_config(
                "upstreams.http.v3.HttpProtocolOptions",
                explicit_http_config={"http2_protocol_options": http2},
            )
        },
    }


def _eds(source: Json) -> Json:
    config = {"resource_api_version": "V3", **source}
    return {"type": "EDS", "eds_cluster_config": {"service_name": WORKERS, "eds_config": config}}
