"""Holds prompts for a window, so that those of one moment are placed together. Pure."""

from collections.abc import Sequence
from typing import Final, Protocol

from epp.endpoints.endpoint import Endpoint, EndpointPool
from epp.request.inference_request import InferenceRequest
from epp.request.rejection import Rejection
from epp.scheduling.plugin import AdmissionController
from epp.scheduling.waiting import WaitingRequest


class PromptPlacer(Protocol):
    """Places the prompts of one window together. `window`: seconds; `most_requests`: in one window, None: no limit."""

    window: float
    most_requests: int | None

    def read(self, request: InferenceRequest, pool: EndpointPool) -> bool:
        """Hash the prompt before it waits; whether there is one."""

    def place(self, requests: Sequence[InferenceRequest], pool: EndpointPool) -> None:
        """Place the requests of a window at the endpoints of the pool."""


_NO_REQUEST: Final[float] = float("inf")


class BurstWindow:
    """An AdmissionController. `before`: decides first; it must let nothing wait.

    A window begins with its first prompt. What has no prompt goes at once, and so does what comes to a full window: that is
    placed by the other scorers.
    """

    def __init__(self, producer: PromptPlacer, before: AdmissionController) -> None:
        self._producer = producer
        self._before = before
        self._waiting: dict[WaitingRequest, None] = {}
        self._ends_at = _NO_REQUEST

    @property
    def waits_for_endpoints(self) -> bool:
        return False

    def admit(self, request: InferenceRequest, candidates: EndpointPool, now: float) -> bool:
        if not self._before.admit(request, candidates, now):
            raise TypeError("the admission before a burst window let a request wait")
        return self._goes_alone(request, candidates)

    def would_admit(self, request: InferenceRequest, candidates: EndpointPool, now: float) -> bool:
        self._before.would_admit(request, candidates, now)
        return self._goes_alone(request, candidates)

    def _goes_alone(self, request: InferenceRequest, candidates: EndpointPool) -> bool:
        """The window is full, or the request has no prompt that others could share."""
        most = self._producer.most_requests
        if most is not None and len(self._waiting) >= most:
            return True
        return not self._producer.read(request, candidates)

    def would_enqueue(self, request: InferenceRequest, now: float) -> None:
        """Not called: nobody waits for endpoints here, and who waits has a place."""

    def enqueue(self, waiting: WaitingRequest, now: float) -> None:
        if not self._waiting:
            self._ends_at = now + self._producer.window
        self._waiting[waiting] = None

    def withdraw(self, waiting: WaitingRequest, now: float) -> None:
        self._waiting.pop(waiting, None)

    def dispatch(self, now: float) -> float | None:
        if not self._waiting:
            return None
        if now < self._ends_at:
            return self._ends_at
        together, self._waiting = list(self._waiting), {}
        self._place(together, now)
        for waiting in together:
            waiting.dispatch(now)
        return None

    def close(self, now: float) -> float | None:
        """End the window: another configuration is in force."""
        self._ends_at = now
        self.dispatch(now)
        return None

    def _place(self, together: list[WaitingRequest], now: float) -> None:
        """Prompts are placed together that may go to the same endpoints: those of another model may not."""
        groups: dict[tuple[Endpoint, ...], tuple[EndpointPool, list[InferenceRequest]]] = {}
        for waiting in together:
            try:
                pool = waiting.candidates(now)
            except Rejection:  # told when it is dispatched; another one may have candidates
                continue
            groups.setdefault(pool.endpoints, (pool, []))[1].append(waiting.request)
        for pool, requests in groups.values():
            late = pool.late()  # no profile would send them there
            self._producer.place(requests, pool if late is None else pool.select(~late))
