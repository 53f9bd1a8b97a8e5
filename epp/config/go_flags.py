"""The Go picker's flags that are accepted without effect, with the reason.

A flag that selects workers, metrics or clients is never here: it has its effect, or the picker does not start
(`worker_source.py`, `metric_flags.py`, `tls_rules.py`).
"""

from collections.abc import Mapping
from typing import Final

SWITCHES: Final[Mapping[str, str]] = {
    "allow-experimental-plugins": "every built-in plugin may be used",
    "enable-pprof": "Python has no pprof pages",
    "ha-enable-leader-election": "every replica serves: there is no leader",
    "health-checking": "health is always served",
    "tracing": "no traces are written",
    "zap-devel": "the log has one form",
}
"""Boolean flags."""

VALUES: Final[Mapping[str, str]] = {
    "grpc-max-send-msg-size": "no large messages are sent",
    "refresh-prometheus-metrics-interval": "gauges are computed when /metrics is read",
    "zap-encoder": "the log has one form",
    "zap-log-level": "-v sets the log level",
    "zap-stacktrace-level": "the log has one form",
    "zap-time-encoding": "the log has one form",
}
"""Flags with any other value."""


def explain(name: str) -> str:
    """The flag and why it has no effect, for the log."""
    return f"--{name} ({SWITCHES.get(name) or VALUES[name]})"
