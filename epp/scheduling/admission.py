"""Decides whether a request goes to an endpoint now, waits, or is refused. Pure."""

from collections.abc import Callable
from dataclasses import dataclass

from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import EndpointPool
from epp.request.inference_api import while_it_waits
from epp.request.inference_request import InferenceRequest
from epp.request.rejection import RETRY_AFTER, Rejection
from epp.scheduling.pick import SchedulingContext
from epp.scheduling.plugin import AdmissionController, FrontAdmission
from epp.scheduling.saturation import SATURATED, SaturationDetector
from epp.scheduling.waiting import RequestScheduler, WaitingRequest, WaitingRequests


@dataclass(frozen=True, slots=True)
class ShedWhenSaturated:
    """Lets nothing wait: at saturation, requests of a priority below 0 are refused with 429.

    This is the Go picker's admission without flow control.
    """

    detector: SaturationDetector

    @property
    def waits_for_endpoints(self) -> bool:
        return False

    def admit(self, request: InferenceRequest, candidates: EndpointPool, now: float) -> bool:
        if request.priority >= 0 or self.detector.saturation(candidates) < 1.0:
            return True
        message = f"the endpoints are saturated, and a request of priority {request.priority} has to wait"
        raise Rejection(429, "saturated", message, reason=SATURATED, retry_after=RETRY_AFTER)

    def would_admit(self, request: InferenceRequest, candidates: EndpointPool, now: float) -> bool:
        return self.admit(request, candidates, now)

    def would_enqueue(self, request: InferenceRequest, now: float) -> None:
        """Not called, since `admit` lets nothing wait."""

    def enqueue(self, waiting: WaitingRequest, now: float) -> None:
        """Not called, since `admit` lets nothing wait."""

    def withdraw(self, waiting: WaitingRequest, now: float) -> None:
        """Not called, since nothing waits."""

    def dispatch(self, now: float) -> float | None:
        return None

    def close(self, now: float) -> float | None:
        """Nothing waits that would have to go."""
        return None


class Admissions:
    """The admission in force, with what waits for it, and those of earlier configurations in which requests still wait."""

    def __init__(self, scheduler: RequestScheduler, datastore: Datastore, first: AdmissionController) -> None:
        self._replaced: list[AdmissionController] = []
        self._set(first)
        self.waiting = WaitingRequests(scheduler, datastore, self._withdraw)

    def use(self, admission: AdmissionController) -> None:
        """Let this one decide from now on. Requests that wait for another one go, unless that stands behind this one."""
        if admission is not self.current:
            kept = _parts(admission)
            # the first part last, so that it is closed first: what waits for it goes on to the next one
            gone = [one for one in _parts(self.current) if not any(one is other for other in kept)]
            self._replaced += reversed(gone)
            self._set(admission)
            self.waiting.wake()

    def _set(self, admission: AdmissionController) -> None:
        self.current = admission
        self.waits_for_endpoints = admission.waits_for_endpoints
        # as an object: compiled, a bool of numpy would be no bool
        self.admits: Callable[[InferenceRequest, EndpointPool, float], object] = admission.admit

    def wait(self, context: SchedulingContext, now: float) -> WaitingRequest:
        """Let a request wait that was not admitted; raises `Rejection`."""
        request = context.request
        if context.decision is not None:
            context.decision.waits()
        try:
            waiting = self.waiting.begin(context, now)
            request.prompt = while_it_waits(request.prompt, request.body_size)
            self.current.enqueue(waiting, now)
        except Rejection as rejection:
            self.waiting.turn_away(request, rejection, now)
            raise
        self.waiting.add(waiting, now)
        return waiting

    def dispatch(self, now: float) -> float | None:
        """Let the admissions dispatch. Returns the time of the next call at the latest; None: not before `waiting.wake`.

        If one raises, all requests that wait fail with its error: otherwise they would wait for ever.
        """
        try:
            while self._replaced:
                replaced = self._replaced.pop()
                again_at = replaced.close(now)
                if again_at is not None:
                    self._replaced.append(replaced)
                    return again_at
            return self.current.dispatch(now)
        except Exception as error:  # noqa: BLE001  # a fault of a plugin, raised to the waiting requests
            self.waiting.refuse_all(error, now)
            return None

    def _withdraw(self, waiting: WaitingRequest, now: float) -> None:
        for admission in (self.current, *self._replaced):
            admission.withdraw(waiting, now)


def _parts(admission: AdmissionController) -> list[AdmissionController]:
    """This one, and those that it stands in front of."""
    found = [admission]
    while isinstance(admission, FrontAdmission):
        admission = admission.behind
        found.append(admission)
    return found
