"""Which Redis lists a message may name for its result (pure)."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

KEPT: Final = ("adsum:", "request-active:", "request-cancel:")
"""How keys begin that are no lists: ours, and those in which producers mark their requests."""
LONGEST: Final = 512
"""Bytes of a name."""


@dataclass(frozen=True, slots=True)
class ResultLists:
    """`intakes`: keys from which messages are read. `allowed`: the only names that a message may use; empty: any other."""

    intakes: frozenset[str] = frozenset()
    allowed: Collection[str] = ()

    def refusal(self, name: str) -> str:
        """Why a result may not go there; empty: it may."""
        shown = ascii(name[:80])
        if name in self.intakes:
            return f"result_queue_name is {shown}, from which requests are read; expected a list for results"
        if name.startswith(KEPT):
            return f"result_queue_name is {shown}, but keys that begin so are in use; expected a list for results"
        if self.allowed and name not in self.allowed:
            return f"result_queue_name is {shown}; expected one of {', '.join(map(ascii, self.allowed))}"
        if len(name.encode(errors="replace")) > LONGEST:
            return f"result_queue_name has more than {LONGEST} bytes"
        return ""


ANY: Final = ResultLists()
"""Whatever is not in use."""
