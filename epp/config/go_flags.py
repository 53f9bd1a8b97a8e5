"""The Go picker's flags that are accepted without effect, with the reason.

A flag that selects workers, metrics or clients is never here: it has its effect, or the picker does not start
(`worker_source.py`, `metric_flags.py`, `tls_rules.py`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from epp.config.declared_flags import boolean, duration, quantity


@dataclass(frozen=True, slots=True)
class Ignored:
    """`kind` parses the value. `met`: the value that asks for what is so anyhow."""

    kind: Callable[[str], Any]
    reason: str
    met: bool | None = None


IGNORED: Final[Mapping[str, Ignored]] = {
    "ha-enable-leader-election": Ignored(boolean, "every replica serves: there is no leader", False),
    "allow-experimental-plugins": Ignored(boolean, "every built-in plugin may be used", True),
    "health-checking": Ignored(boolean, "health is always served", True),
    "grpc-max-send-msg-size": Ignored(
        quantity, "no message is larger than the body that it carries, and --max-body-bytes limits those"
    ),
    "refresh-prometheus-metrics-interval": Ignored(duration, "gauges are computed when /metrics is read"),
    "zap-stacktrace-level": Ignored(str, "a traceback is logged for a fault of the picker only"),
}

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
    return sorted(
        name
        for name, ignored in IGNORED.items()
        if (value := given[name.replace("-", "_")]) is not None and value is not ignored.met
    )


def explain(name: str) -> str:
    """The flag and why it has no effect, for the log."""
    return f"--{name} ({IGNORED[name].reason})"
