"""How much of each prompt its worker was believed to hold at the pick. Pure."""

from collections.abc import Sequence
from typing import Final

from adsum.histogram import Histogram

RATIOS: Final[Sequence[float]] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""A Sequence: mypyc 2.4 takes a Final tuple that begins with floats for unset."""
BYTES: Final = (0, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)


class Credit:
    """Bytes of all prompts that were sent to one endpoint, and of these what it was believed to hold."""

    __slots__ = ("held", "total")

    def __init__(self, held: int = 0, total: int = 0) -> None:
        self.held = held
        self.total = total


class PrefixHits:
    """`ratios`: of the prompt; `bytes`: of its JSON. Buckets are the Go picker's. `credits`: by endpoint."""

    __slots__ = ("bytes", "credits", "ratios")

    def __init__(self) -> None:
        self.ratios = Histogram(RATIOS)
        self.bytes = Histogram(BYTES)
        self.credits: dict[tuple[str, str], Credit] = {}

    def observe(self, key: tuple[str, str], held: int, total: int) -> None:
        """Of `total` bytes the worker was believed to hold the first `held`. `key`: of its endpoint."""
        credit = self.credits.get(key)
        if credit is None:
            credit = self.credits[key] = Credit()
        credit.held += held
        credit.total += total
        self.bytes.observe(held)
        if total:
            self.ratios.observe(held / total)

    def retain(self, keys: Sequence[tuple[str, str]]) -> None:
        """Forget the credits of all other endpoints."""
        for key in self.credits.keys() - keys:
            del self.credits[key]
