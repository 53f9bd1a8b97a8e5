"""Durations and sizes as text: Go's syntax, Kubernetes quantities, protobuf's JSON form, and adsum's own (pure)."""

import re
from collections.abc import Mapping
from fractions import Fraction
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
# bounded: at most 128 characters
_GO_PART: Final = re.compile(r"([0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(ns|us|µs|μs|ms|s|m|h)")
_MAX_GO_SECONDS: Final = 2**63 / 1e9
"""Go's time.Duration is an int64 of nanoseconds."""
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
# bounded: at most 128 characters
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


_QUANTITY_UNITS: Final = {
    unit: factor
    for power, name in enumerate("kMGTPE", start=1)
    for unit, factor in ((name, 1000**power), (f"{name.upper()}i", 1024**power))
}
_QUANTITY: Final = re.compile(
    r"([0-9]{1,19}(?:\.[0-9]{0,9})?)(?:([kMGTPE]|[KMGTPE]i)|[eE]([0-9]{1,2}))?[Bb]?"
)
_MAX_QUANTITY: Final = 2**63 - 1
_SIZE_UNITS: Final = {"": 1, "B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_SIZE: Final = re.compile(r"([0-9]{1,15}) ?(B|KiB|MiB|GiB|)")


def parse_size(text: str) -> int:
    """Bytes, zero or more, from "4096", "512KiB" or "10 MiB"; raises ValueError."""
    if not (found := _SIZE.fullmatch(text)):
        raise ValueError(
            f"{quoted(text)} is not a size; write bytes as a number, or with a unit, as 512KiB or 10MiB"
        )
    return int(found[1]) * _SIZE_UNITS[found[2]]


def parse_quantity(text: str) -> int:
    """A whole number from 0 to 2^63 - 1, from "4194304", "512k", "10Mi" or "1.5Gi"; raises ValueError.

    https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/; as in the Go picker a B may follow,
    "10MiB".
    """
    found = _QUANTITY.fullmatch(text.strip())
    if found is not None:
        value = Fraction(found[1]) * _QUANTITY_UNITS.get(found[2], 1) * 10 ** int(found[3] or 0)
        if value.denominator == 1 and value <= _MAX_QUANTITY:
            return int(value)
    raise ValueError(
        f"{quoted(text)} is not a size; write a number with or without a unit, as 4194304, 512k or 10Mi"
    )
