"""One accepted request while it has no result, and who is told what happens to it."""

from dataclasses import dataclass
from typing import Protocol

from dispatcher.broker.memory.order import QueuePosition
from dispatcher.broker.message import Request
from dispatcher.broker.queue import State


class EntryListener(Protocol):
    """Who is told what happened in a book."""

    def claimable(self) -> None:
        """Something may be claimable, now or at another time than before."""

    def done(self) -> None:
        """There is one more result."""

    def cancelled(self, owner: str, fence: str) -> None:
        """A claim's request was cancelled."""


@dataclass(slots=True)
class Entry:
    """A request that has no result yet. `until_ms`: the end of its delay or of its lease."""

    place: QueuePosition
    request: Request
    state: State = State.PENDING
    delivery: int = 0
    attempt: int = 0
    lapses: int = 0
    fence: str = ""
    owner: str = ""
    charge: float = 0.0
    until_ms: int = 0
