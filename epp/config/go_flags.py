"""The Go picker's flags that are taken and change nothing here, with the reason; all of them harmless.

A flag that chooses workers, what is read of them, or who may connect is never here: it has its effect, or stops the
start (`worker_source.py`, `metric_flags.py`, `tls_rules.py`).
"""

from collections.abc import Mapping
from typing import Final

SWITCHES: Final[Mapping[str, str]] = {
    "allow-experimental-plugins": "every plugin that is built may be used",
    "enable-grpc-stream-metrics": "gRPC streams are not counted by themselves",
    "enable-pprof": "Python has no pprof pages",
    "ha-enable-leader-election": "every replica serves, none waits for another to go",
    "health-checking": "health is always served",
    "tracing": "no traces are written",
    "zap-devel": "the log has one form",
}
"""Boolean flags."""

VALUES: Final[Mapping[str, str]] = {
    "grpc-max-send-msg-size": "no message that is sent is large",
    "refresh-prometheus-metrics-interval": "gauges are computed when /metrics is read",
    "zap-encoder": "the log has one form",
    "zap-log-level": "-v says how much is logged",
    "zap-stacktrace-level": "the log has one form",
    "zap-time-encoding": "the log has one form",
}
"""Flags with any other value."""


def said(name: str) -> str:
    """For the log: the flag and why it does nothing."""
    return f"--{name} ({SWITCHES.get(name) or VALUES[name]})"
