"""The protocol of what observes requests: counters, and tests that stop a process at a certain step."""

from typing import Protocol

from dispatcher.broker.contract.message import Claim, DispatchCandidate
from dispatcher.delivery.gateway import GatewayAnswer, NoAnswer
from dispatcher.delivery.verdict import Verdict
from dispatcher.gates.gate import RefusedError


class DispatchObserver(Protocol):
    """Observes one queue. Its methods run on the path of each request: they must return at once."""

    def refused(self, candidate: DispatchCandidate, refusal: RefusedError) -> None:
        """The gate refused the candidate."""

    def claimed(self, claim: Claim) -> None:
        """A claim was made; it holds a slot."""

    def sent(self, claim: Claim) -> None: ...

    def answered(self, claim: Claim, answer: GatewayAnswer | NoAnswer, seconds: float) -> None:
        """The attempt ended after `seconds`; its result is not stored yet."""

    def settled(self, claim: Claim, verdict: Verdict, accepted: bool) -> None:
        """The broker has the verdict. `accepted` False: it ignored it, since the claim was cancelled or taken over."""

    def slot_released(self) -> None:
        """The slot of a claim is free again, however the claim ended."""

    def sweeping(self) -> None:
        """The queue is about to release claims whose lease has ended."""
