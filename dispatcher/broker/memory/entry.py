"""A request without a result, and the listener that is told of changes (pure)."""

from dataclasses import dataclass
from typing import Protocol

from dispatcher.broker.contract.message import Request
from dispatcher.broker.contract.queue import State
from dispatcher.broker.memory.order import QueuePosition


class RequestTableListener(Protocol):
    def on_claimable(self) -> None:
        """Something may be claimable, or will be at another time than before."""

    def on_result(self) -> None:
        """There is one more result."""

    def on_cancelled(self, owner: str, fence: str) -> None:
        """A claimed request was cancelled."""


@dataclass(slots=True)
class Entry:
    """A request without a result. `until_ms`: the end of its delay or of its lease. `cost`: what its claim charged."""

    position: QueuePosition
    request: Request
    state: State = State.PENDING
    delivery: int = 0
    attempt: int = 0
    lapses: int = 0
    failures: int = 0
    disconnects: int = 0
    fence: str = ""
    owner: str = ""
    cost: float = 0.0
    until_ms: int = 0
