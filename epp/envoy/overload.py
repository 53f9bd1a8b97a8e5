"""The limits of Envoy, beyond which it takes less from clients: connections and memory.

https://www.envoyproxy.io/docs/envoy/latest/configuration/operations/overload_manager/overload_manager
"""

import resource
from typing import Final

from epp.envoy.json_values import Json, typed_config

_CONNECTIONS: Final = "envoy.resource_monitors.global_downstream_max_connections"
_HEAP: Final = "envoy.resource_monitors.fixed_heap"
_MOST_CONNECTIONS: Final = 10_000
_TRACKED_POWER: Final = 20
"""Streams that hold 1 MiB and more may be reset; two powers more is a bucket of its own (overload.proto)."""


def connections_by_descriptors() -> int:
    """Connections of clients, for an Envoy that may open as many files as this process.

    Envoy asks for less than half: each may need a connection to a worker too
    (https://www.envoyproxy.io/docs/envoy/latest/configuration/best_practices/edge).
    """
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return max(1, min(_MOST_CONNECTIONS, descriptors * 2 // 5))


def overload_manager(max_connections: int, max_heap: int) -> Json:
    """The field `overload_manager`: idle connections close the sooner the more there are, and beyond the limit new ones do.

    As the heap fills up, Envoy gives free pages back, closes connections after their answer, refuses requests, and
    resets the streams that hold most. The status listener is exempt.
    """
    return {
        "refresh_interval": "0.25s",
        "resource_monitors": [
            _monitor(
                _CONNECTIONS,
                "downstream_connections.v3.DownstreamConnectionsConfig",
                max_active_downstream_connections=max_connections,
            ),
            _monitor(_HEAP, "fixed_heap.v3.FixedHeapConfig", max_heap_size_bytes=max_heap),
        ],
        "actions": [
            {
                **_action("reduce_timeouts", _scaled(_CONNECTIONS, 0.5, 0.9), _scaled(_HEAP, 0.85, 0.95)),
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.config.overload.v3.ScaleTimersOverloadActionConfig",
                    "timer_scale_factors": [
                        {"timer": "HTTP_DOWNSTREAM_CONNECTION_IDLE", "min_timeout": "2s"}
                    ],
                },
            },
            _action("shrink_heap", _above(_HEAP, 0.85)),
            _action("disable_http_keepalive", _above(_HEAP, 0.9)),
            _action("stop_accepting_requests", _above(_HEAP, 0.95)),
            _action("reset_high_memory_stream", _scaled(_HEAP, 0.97, 1.0)),
        ],
        "buffer_factory_config": {"minimum_account_to_track_power_of_two": _TRACKED_POWER},
    }


def _monitor(name: str, kind: str, **fields: object) -> Json:
    return {"name": name, "typed_config": typed_config(f"resource_monitors.{kind}", **fields)}


def _action(name: str, *triggers: Json) -> Json:
    return {"name": f"envoy.overload_actions.{name}", "triggers": list(triggers)}


def _above(monitor: str, share: float) -> Json:
    return {"name": monitor, "threshold": {"value": share}}


def _scaled(monitor: str, begins: float, full: float) -> Json:
    return {"name": monitor, "scaled": {"scaling_threshold": begins, "saturation_threshold": full}}
