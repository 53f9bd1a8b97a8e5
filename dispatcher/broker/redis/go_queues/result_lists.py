"""Which Redis lists a message may name for its result (pure).

A Go producer names the list in its message. Without rules, anyone who may submit could have results pushed onto any list
key of the Redis: a queue of another program, or a sorted set that is empty at the moment and would become a list.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

RESERVED_PREFIXES: Final = ("adsum:", "request-active:", "request-cancel:")
"""Prefixes of our own keys, and of those in which Go producers mark active and cancelled requests."""
LONGEST_LIST_NAME: Final = 512
"""Bytes."""


@dataclass(frozen=True, slots=True)
class ResultLists:
    """`intakes`: keys that messages are read from. `allowed`: the only names a message may use; empty: any other."""

    intakes: frozenset[str] = frozenset()
    allowed: Collection[str] = ()

    def refusal(self, name: str) -> str:
        """Why a result may not go to this list; empty if it may."""
        shown = ascii(name[:80])
        if name in self.intakes:
            return f"result_queue_name is {shown}, which is an intake; expected a list for results"
        if name.startswith(RESERVED_PREFIXES):
            return f"result_queue_name is {shown}, and that prefix is reserved; expected a list for results"
        if self.allowed and name not in self.allowed:
            return f"result_queue_name is {shown}; expected one of {', '.join(map(ascii, self.allowed))}"
        if len(name.encode(errors="replace")) > LONGEST_LIST_NAME:
            return f"result_queue_name has more than {LONGEST_LIST_NAME} bytes; use a shorter one"
        return ""


ANY_LIST: Final = ResultLists()
"""Every list but those in use."""
