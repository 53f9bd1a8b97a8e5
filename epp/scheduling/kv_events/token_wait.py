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
    """An AdmissionController. `behind`: decides when the tokens are known, or after `longest` seconds."""

    def __init__(self, reader: TokenReader, longest: float, behind: AdmissionController) -> None:
        self._reader = reader
        self._longest = longest
        self.behind = behind
        self._asked: InferenceRequest | None = None
        """The latest that waits for tokens."""
        # bounded: by the requests that wait at all
        self._due: dict[WaitingRequest, float] = {}

    @property
    def waits_for_endpoints(self) -> bool:
        return self.behind.waits_for_endpoints

    def admit(self, request: InferenceRequest, candidates: EndpointPool, now: float) -> bool:
        if len(candidates) > 1 and self._reader.ask(request):
            self._asked = request
            return False
        return self.behind.admit(request, candidates, now)

    def would_admit(self, request: InferenceRequest, candidates: EndpointPool, now: float) -> bool:
        return self.behind.would_admit(request, candidates, now)

    def would_enqueue(self, request: InferenceRequest, now: float) -> None:
        self.behind.would_enqueue(request, now)

    def enqueue(self, waiting: WaitingRequest, now: float) -> None:
        if waiting.request is self._asked:
            self._due[waiting] = now + self._longest
        else:
            self.behind.enqueue(waiting, now)

    def withdraw(self, waiting: WaitingRequest, now: float) -> None:
        if self._due.pop(waiting, None) is None:
            self.behind.withdraw(waiting, now)

    def dispatch(self, now: float) -> float | None:
        for waiting in [
            one for one, due in self._due.items() if due <= now or self._reader.has_tokens(one.request)
        ]:
            self._go_on(waiting, now)
        due, behind = min(self._due.values(), default=None), self.behind.dispatch(now)
        return behind if due is None else due if behind is None else min(due, behind)

    def close(self, now: float) -> float | None:
        """Another configuration is in force: nothing waits for tokens any longer."""
        for waiting in list(self._due):
            self._go_on(waiting, now)
        return None

    def _go_on(self, waiting: WaitingRequest, now: float) -> None:
        if self._due.pop(waiting, None) is None:
            return
        try:
            if self._is_admitted(waiting, now):
                waiting.dispatch(now)
            else:
                self.behind.enqueue(waiting, now)
        except Rejection as rejection:
            waiting.refuse(rejection, now)

    def _is_admitted(self, waiting: WaitingRequest, now: float) -> bool:
        try:
            candidates = waiting.candidates(now)
        except Rejection as rejection:
            if rejection.status == 503 and self.behind.waits_for_endpoints:
                return False
            raise
        return self.behind.admit(waiting.request, candidates, now)
