"""Lets a request wait until the tokens of its prompt are known, for a set time at most. Pure."""

from typing import Protocol

from epp.endpoints.endpoint import EndpointPool
from epp.request.inference_request import InferenceRequest
from epp.request.rejection import Rejection
from epp.scheduling.plugin import AdmissionController
from epp.scheduling.waiting import WaitingRequest


class TokenReader(Protocol):
    """A plugin that needs the tokens of prompts."""

    def ask(self, request: InferenceRequest) -> bool:
        """Begin to find them out, if they are unknown; whether there is something to wait for."""

    def has_tokens(self, request: InferenceRequest) -> bool:
        """Whether they are known, or nobody knows them."""


class TokenWait:
    """An AdmissionController. `behind`: decides when the tokens are known, or after `longest` seconds; it lets nothing wait."""

    def __init__(self, reader: TokenReader, longest: float, behind: AdmissionController) -> None:
        self._reader = reader
        self._longest = longest
        self._behind = behind
        # bounded: by the requests that wait at all
        self._due: dict[WaitingRequest, float] = {}

    @property
    def waits_for_endpoints(self) -> bool:
        return self._behind.waits_for_endpoints

    def admit(self, request: InferenceRequest, candidates: EndpointPool, now: float) -> bool:
        if len(candidates) > 1 and self._reader.ask(request):
            return False
        return self._behind.admit(request, candidates, now)

    def would_admit(self, request: InferenceRequest, candidates: EndpointPool, now: float) -> bool:
        return self._behind.would_admit(request, candidates, now)

    def would_enqueue(self, request: InferenceRequest, now: float) -> None:
        self._behind.would_enqueue(request, now)

    def enqueue(self, waiting: WaitingRequest, now: float) -> None:
        self._due[waiting] = now + self._longest

    def withdraw(self, waiting: WaitingRequest, now: float) -> None:
        if self._due.pop(waiting, None) is None:
            self._behind.withdraw(waiting, now)

    def dispatch(self, now: float) -> float | None:
        ready = [one for one, due in self._due.items() if due <= now or self._reader.has_tokens(one.request)]
        for waiting in ready:
            if self._due.pop(waiting, None) is not None:
                self._admit_behind(waiting, now)
        return min(self._due.values(), default=None)

    def close(self, now: float) -> float | None:
        """Another configuration is in force: nothing waits any longer."""
        waiting, self._due = list(self._due), {}
        for one in waiting:
            self._admit_behind(one, now)
        return self._behind.close(now)

    def _admit_behind(self, waiting: WaitingRequest, now: float) -> None:
        try:
            self._behind.admit(waiting.request, waiting.candidates(now), now)
        except Rejection as rejection:
            waiting.refuse(rejection, now)
        else:
            waiting.dispatch(now)
