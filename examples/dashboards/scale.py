"""Axes and numbers as a Grafana panel shows them: round steps, and units that fit. Pure."""

import math
from collections.abc import Sequence
from typing import Final

_STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)
_SECONDS: Final = ((180.0, 60.0, "min"), (1.0, 1.0, "s"), (1e-3, 1e-3, "ms"), (0.0, 1e-6, "µs"))
"""From which value on, divided by what, called what."""
_SUFFIXES: Final = {"reqps": " req/s", "ops": " ops/s"}


def ticks(lowest: float, highest: float, count: int = 4) -> list[float]:
    """Round values from `lowest`, about `count` of them; the last one is not below `highest`."""
    span = max(highest - lowest, 1e-9)
    magnitude = 10 ** math.floor(math.log10(span / count))
    step = next(magnitude * part for part in _STEPS if magnitude * part * count >= span * 0.999)
    steps = math.ceil(span / step - 1e-6)
    return [lowest + step * number for number in range(steps + 1)]


def text(value: float, unit: str) -> str:
    """One value in Grafana's `unit`."""
    if unit == "percentunit":
        return f"{_short(value * 100)} %"
    if unit in ("s", "ms"):
        return _duration(value / (1000 if unit == "ms" else 1))
    return _short(value) + _SUFFIXES.get(unit, "")


def all_text(values: Sequence[float], unit: str) -> list[str]:
    """The labels of an axis: all in the unit that suits the largest."""
    if unit not in ("s", "ms") or not any(values):
        return [text(value, unit) for value in values]
    scale = 1000 if unit == "ms" else 1
    divisor, name = _unit_of(max(values) / scale)
    return [f"{_short(value / scale / divisor)} {name}" if value else "0" for value in values]


def _duration(seconds: float) -> str:
    if not seconds:
        return "0 s"
    divisor, name = _unit_of(seconds)
    return f"{_short(seconds / divisor)} {name}"


def _unit_of(seconds: float) -> tuple[float, str]:
    return next((divisor, name) for least, divisor, name in _SECONDS if seconds >= least)


def _short(value: float) -> str:
    """Three digits, and K or M for what has more."""
    for size, name in ((1e6, " M"), (1e4, " K")):
        if abs(value) >= size:
            return f"{value / (1e3 if name == ' K' else size):.3g}{name}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
