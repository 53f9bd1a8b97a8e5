"""Sizes as Kubernetes writes quantities: 4194304, 512k, 10Mi, 1.5Gi; as in the Go picker a B may follow, 10MiB (pure)."""

import re
from fractions import Fraction
from typing import Final

_UNITS: Final = {
    unit: factor
    for power, name in enumerate("kMGTPE", start=1)
    for unit, factor in ((name, 1000**power), (f"{name.upper()}i", 1024**power))
}
_QUANTITY: Final = re.compile(
    r"([0-9]{1,19}(?:\.[0-9]{0,9})?)(?:([kMGTPE]|[KMGTPE]i)|[eE]([0-9]{1,2}))?[Bb]?"
)
_MOST: Final = 2**63 - 1


def parse_quantity(text: str) -> int:
    """A whole number from 0 to 2^63 - 1; raises ValueError."""
    found = _QUANTITY.fullmatch(text.strip())
    if found is not None:
        value = Fraction(found[1]) * _UNITS.get(found[2], 1) * 10 ** int(found[3] or 0)
        if value.denominator == 1 and value <= _MOST:
            return int(value)
    shown = text if len(text) <= 40 else f"{text[:40]}..."
    raise ValueError(
        f"{shown!r} is not a size; write a number with or without a unit, as 4194304, 512k or 10Mi"
    )
