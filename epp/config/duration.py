"""Durations as Go writes them: "50ms", "2s", "1m30s", "1.5h", "0"."""

import re

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_MOST = 2**63 / 1e9
"""Go counts nanoseconds in 64 bits."""
_PART = re.compile(r"(\d++(?:\.\d*+)?|\.\d++)(ns|us|µs|μs|ms|s|m|h)")


def parse_duration(text: str) -> float:
    """Seconds, zero or more (Go's time.ParseDuration without a sign); raises ValueError."""
    if text == "0":
        return 0.0
    total, position = 0.0, 0
    while position < len(text) and (part := _PART.match(text, position)):
        total += float(part[1]) * _UNITS[part[2]]
        position = part.end()
    if not text or position < len(text) or total > _MOST:
        shown = text if len(text) <= 40 else f"{text[:40]}..."
        raise ValueError(f"{shown!r} is not a duration; write a number with a unit, as 50ms, 2s or 1m30s")
    return total


def write_duration(seconds: float) -> str:
    """As protobuf's JSON form, which Envoy reads, has it: seconds with at most nine decimals, "0.5s"."""
    return f"{seconds:.9f}".rstrip("0").rstrip(".") + "s"
