"""What happens to requests, told as it happens to whoever counts it."""

from typing import Protocol

from dispatcher.broker.message import Claim, DispatchCandidate
from dispatcher.delivery.gateway import GatewayAnswer, NoAnswer
from dispatcher.delivery.verdict import Verdict
from dispatcher.gates.gate import RefusedError


class DispatchObserver(Protocol):
    """Of one queue. Each method returns at once."""

    def refused(self, candidate: DispatchCandidate, refusal: RefusedError) -> None:
        """The gate said: not now."""

    def claimed(self, claim: Claim) -> None:
        """It is ours, a slot is taken."""

    def sent(self, claim: Claim) -> None: ...

    def answered(self, claim: Claim, answer: GatewayAnswer | NoAnswer, seconds: float) -> None:
        """The attempt is over; nothing is published yet."""

    def settled(self, claim: Claim, verdict: Verdict, ours: bool) -> None:
        """The broker took the verdict; `ours` False: somebody else had answered, or it was cancelled."""

    def slot_released(self) -> None:
        """A claim's slot is free again, whatever became of it."""

    def sweeping(self) -> None:
        """Lapsed claims are about to be released."""
