"""What one look at a worker's metrics page found, and whether it makes sense. Pure."""

from dataclasses import dataclass
from typing import Final

from epp.endpoints.endpoint import Adapters


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One look at one worker; None where its page says nothing, NaN where what it says is no number."""

    waiting: float | None = None
    running: float | None = None
    kv_usage: float | None = None
    max_lora: float | None = None
    adapters: Adapters | None = None

    @property
    def known(self) -> bool:
        """Whether the page said anything at all."""
        return self != _NOTHING

    @property
    def senseless(self) -> str:
        """What the page says that cannot be so, and what was expected; empty where there is no such thing."""
        for name, value, most in (
            ("waiting", self.waiting, _MOST),
            ("running", self.running, _MOST),
            ("kv_usage", self.kv_usage, 1.0),
        ):
            if value is not None and not 0.0 <= value <= most:
                return f"{name} is {value:g}, expected a number from 0 to {most:.0f}"
        return ""


_MOST: Final = 100_000.0
"""Requests that one worker can be believed to have waiting, or running."""
_NOTHING: Final = Load()
