"""Parses and writes durations: Go's syntax, adsum's own, and protobuf's JSON form (pure)."""

import re
from collections.abc import Mapping
from typing import Final

from adsum.quoting import quoted

_MAX_LENGTH: Final = 128
"""Characters. Longer text is rejected without a scan."""
_GO_UNITS: Final = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
}
_GO_PART: Final = re.compile(r"([0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(ns|us|µs|μs|ms|s|m|h)")
_MAX_GO_SECONDS: Final = 2**63 / 1e9
"""Go's time.Duration is an int64 of nanoseconds."""
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)")


def parse_duration(text: str) -> float:
    """Seconds, zero or more, from "500ms", "15s", "1h30m" or "7d"; raises ValueError."""
    seconds = _sum(text, _PART, _UNITS)
    if seconds is None:
        raise ValueError(
            f"{quoted(text)} is not a duration; write a number with a unit, as 500ms, 15s, 1h30m or 7d"
        )
    return seconds


def parse_go_duration(text: str) -> float:
    """Seconds, zero or more, from "50ms", "1m30s", "1.5h" or "0"; raises ValueError.

    https://pkg.go.dev/time#ParseDuration, without a sign. Go has no unit for a day.
    """
    seconds = 0.0 if text == "0" else _sum(text, _GO_PART, _GO_UNITS)
    if seconds is None or seconds > _MAX_GO_SECONDS:
        raise ValueError(
            f"{quoted(text)} is not a duration; write a number with a unit, as 50ms, 2s or 1m30s"
        )
    return seconds


def write_duration(seconds: float) -> str:
    """Protobuf's JSON form, which Envoy reads: seconds with at most nine decimals, "0.5s"."""
    return f"{seconds:.9f}".rstrip("0").rstrip(".") + "s"


def _sum(text: str, part: re.Pattern[str], units: Mapping[str, float]) -> float | None:
    """The sum of all parts in seconds; None if `text` has anything but parts."""
    if not text or len(text) > _MAX_LENGTH:
        return None
    total, position = 0.0, 0
    while position < len(text):
        found = part.match(text, position)
        if found is None:
            return None
        total += float(found[1]) * units[found[2]]
        position = found.end()
    return total
