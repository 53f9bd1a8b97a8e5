"""Parses sizes: Kubernetes quantities, and adsum's own numbers of bytes (pure)."""

import re
from fractions import Fraction
from typing import Final

from adsum.quoting import quoted

_QUANTITY_UNITS: Final = {
    unit: factor
    for power, name in enumerate("kMGTPE", start=1)
    for unit, factor in ((name, 1000**power), (f"{name.upper()}i", 1024**power))
}
_QUANTITY: Final = re.compile(
    r"([0-9]{1,19}(?:\.[0-9]{0,9})?)(?:([kMGTPE]|[KMGTPE]i)|[eE]([0-9]{1,2}))?[Bb]?"
)
_MAX_QUANTITY: Final = 2**63 - 1
_UNITS: Final = {"": 1, "B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_SIZE: Final = re.compile(r"([0-9]{1,15}) ?(B|KiB|MiB|GiB|)")


def parse_size(text: str) -> int:
    """Bytes, zero or more, from "4096", "512KiB" or "10 MiB"; raises ValueError."""
    if not (found := _SIZE.fullmatch(text)):
        raise ValueError(
            f"{quoted(text)} is not a size; write bytes as a number, or with a unit, as 512KiB or 10MiB"
        )
    return int(found[1]) * _UNITS[found[2]]


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
