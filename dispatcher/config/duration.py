"""Durations and sizes as people write them: "500ms", "15s", "1h30m", "7d"; "10MiB"."""

import re

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"": 1, "B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_PART = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)(ms|s|m|h|d)")
_SIZE = re.compile(r"(\d{1,15}) ?(B|KiB|MiB|GiB|)")


def parse_duration(text: str) -> float:
    """Seconds, zero or more; raises ValueError."""
    total, position = 0.0, 0
    while position < len(text) and (part := _PART.match(text, position)):
        total += float(part[1]) * _SECONDS[part[2]]
        position = part.end()
    if not text or position < len(text):
        raise ValueError(
            f"{text[:40]!r} is not a duration; write a number with a unit, as 500ms, 15s, 1h30m or 7d"
        )
    return total


def parse_size(text: str) -> int:
    """Bytes, zero or more; raises ValueError."""
    if not (match := _SIZE.fullmatch(text)):
        raise ValueError(
            f"{text[:40]!r} is not a size; write bytes as a number, or with a unit, as 512KiB or 10MiB"
        )
    return int(match[1]) * _BYTES[match[2]]
