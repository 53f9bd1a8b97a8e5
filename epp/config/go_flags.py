"""The Go picker's flags that are accepted without effect, with the reason.

A flag that selects workers, metrics or clients is never here: it has its effect, or the picker does not start
(`worker_source.py`, `metric_flags.py`, `tls_rules.py`).
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from epp.config.flag_values import duration, quantity

ALWAYS_OFF: Final[Mapping[str, str]] = {
    "ha-enable-leader-election": "every replica serves: there is no leader",
}
"""Boolean flags that have no effect if they are true."""

ALWAYS_ON: Final[Mapping[str, str]] = {
    "allow-experimental-plugins": "every built-in plugin may be used",
    "health-checking": "health is always served",
}
"""Boolean flags that have no effect if they are false."""

VALUES: Final[Mapping[str, tuple[Callable[[str], Any], str]]] = {
    "grpc-max-send-msg-size": (
        quantity,
        "no message is larger than the body that it carries, and --max-body-bytes limits those",
    ),
    "refresh-prometheus-metrics-interval": (duration, "gauges are computed when /metrics is read"),
    "zap-stacktrace-level": (str, "a traceback is logged for a fault of the picker only"),
}
"""Flags with any other value: how it is parsed, and the reason."""

OLDER: Final[Mapping[str, str]] = {
    "model-server-metrics-port": "port of the plugin metrics-data-source, or metrics_port in the worker's metadata",
    "model-server-metrics-path": "path of the plugin metrics-data-source, or metrics_path in the worker's metadata",
    "model-server-metrics-scheme": "scheme of the plugin metrics-data-source",
    "model-server-metrics-https-insecure-skip-verify": "insecureSkipVerify of the plugin metrics-data-source",
    "kubeconfig": "$KUBECONFIG, or --discovery 'kubernetes://NAMESPACE?kubeconfig=PATH'",
}
"""Flags of Go pickers before the one whose flags are followed, which stop the start, and what to use instead."""


def without_effect(given: Mapping[str, object]) -> list[str]:
    """The names of the given flags, by attribute, that do not do what they say."""
    names = [
        *(name for name in ALWAYS_OFF if given[_attribute(name)]),
        *(name for name in ALWAYS_ON if given[_attribute(name)] is False),
        *(name for name in VALUES if given[_attribute(name)] is not None),
    ]
    return sorted(names)


def explain(name: str) -> str:
    """The flag and why it has no effect, for the log."""
    reason = ALWAYS_OFF.get(name) or ALWAYS_ON.get(name) or VALUES[name][1]
    return f"--{name} ({reason})"


def _attribute(name: str) -> str:
    return name.replace("-", "_")
