"""Holds the requests that wait for admission, and ends each of them once. Pure."""

import logging
from collections.abc import Callable
from enum import StrEnum
from typing import Final, Protocol

from adsum.tracing.span import Span
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Endpoint, EndpointPool
from epp.request.inference_request import InferenceRequest
from epp.request.rejection import RETRY_AFTER, Rejection
from epp.scheduling.pick import Pick, SchedulingContext

log = logging.getLogger(__name__)

SHUTTING_DOWN: Final = "rejected-shutting-down"
WAIT_SPAN: Final = "llm_d.epp.flow_control.wait"
"""The Go picker has no span of its own for the wait: it is a part of gateway.request_orchestration."""


class Dequeued(StrEnum):
    """How a request left the queue: dispatched, its client gone, refused, or refused because its time was up.

    NO_ENDPOINTS: its time was up, and there was no endpoint.
    """

    DISPATCHED = "dispatched"
    ABANDONED = "abandoned"
    REFUSED = "refused"
    EXPIRED = "expired"
    NO_ENDPOINTS = "no-endpoints"


class QueueObserver(Protocol):
    """Notified of requests that wait, for metrics; `waited`: seconds."""

    def queued(self, request: InferenceRequest, now: float) -> None: ...
    def dequeued(self, request: InferenceRequest, how: Dequeued, waited: float, now: float) -> None: ...

    def turned_away(self, request: InferenceRequest, rejection: Rejection, now: float) -> None:
        """It would have had to wait, and could not: the queue is full, or the picker drains."""


class RequestScheduler(Protocol):
    """The part of the director that a waiting request needs."""

    def candidates(self, context: SchedulingContext, now: float) -> EndpointPool:
        """The endpoints that may serve it now; raises `Rejection`."""

    def schedule(self, context: SchedulingContext, now: float) -> Pick:
        """Pick among them and reserve; raises `Rejection`, any other exception is a fault of a plugin."""

    def ended_waiting(self, context: SchedulingContext, why: Exception | None, now: float) -> None:
        """It got no pick; None: its client left."""


class WaitingRequest:
    """One request that waits: the handle of its `AdmissionController`, and the `Deferral` of its exchange.

    It ends once: the admission calls `dispatch`, `refuse` or `expire`, its exchange calls `abandon`, or the picker drains.
    What comes later does nothing.
    """

    __slots__ = ("_queue", "_settle", "context", "queued_at", "request", "span")

    def __init__(self, queue: "WaitingRequests", context: SchedulingContext, now: float) -> None:
        self._queue = queue
        self._settle: Callable[[Pick | Exception, float], None] | None = None
        self.context = context
        self.request = context.request
        self.queued_at = now
        self.span: Span | None = None

    @property
    def waits(self) -> bool:
        """Whether its client still waits for a pick."""
        return self in self._queue

    def candidates(self, now: float) -> EndpointPool:
        return self._queue.scheduler.candidates(self.context, now)

    def dispatch(self, now: float) -> bool:
        """Pick an endpoint now; returns whether it got one. If not, the client gets the reason as its answer."""
        if not self.waits:
            return False
        if self.span is not None:
            self.span.end()  # what comes now is scheduling
        try:
            outcome: Pick | Exception = self._queue.scheduler.schedule(self.context, now)
        except Exception as error:  # noqa: BLE001  # the outcome of this request
            outcome = error
        picked = isinstance(outcome, Pick)
        self._end(outcome, Dequeued.DISPATCHED if picked else Dequeued.REFUSED, now)
        return picked

    def refuse(self, rejection: Exception, now: float) -> None:
        """Answer the client with `rejection`; an exception that is no `Rejection` is a fault and ends the stream."""
        self._end(rejection, Dequeued.REFUSED, now)

    def expire(self, rejection: Rejection, now: float) -> None:
        """Refuse the request because its time in the queue is up; 503 says that there was no endpoint."""
        self._end(rejection, Dequeued.NO_ENDPOINTS if rejection.status == 503 else Dequeued.EXPIRED, now)

    def subscribe(self, settle: Callable[[Pick | Exception, float], None]) -> None:
        self._settle = settle

    def abandon(self, now: float) -> None:
        if self.waits:
            self._queue.remove(self, Dequeued.ABANDONED, now)
            self._queue.scheduler.ended_waiting(self.context, None, now)
            self._queue.withdraw(self, now)

    def _end(self, outcome: Pick | Exception, how: Dequeued, now: float) -> None:
        if self.waits:
            self._queue.remove(self, how, now)
            if isinstance(outcome, Exception):
                self._queue.scheduler.ended_waiting(self.context, outcome, now)
            if self._settle is not None:
                self._settle(outcome, now)


class WaitingRequests:
    """All requests that wait. The admission keeps their order, this keeps who still needs an answer.

    `wake` is called when the admission should have its turn soon (`Director.dispatch`): a request came to wait, or while
    one waits a request was released or a load changed. It must not take that turn itself.
    """

    def __init__(
        self,
        scheduler: RequestScheduler,
        datastore: Datastore,
        withdrawn: Callable[[WaitingRequest, float], None],
    ) -> None:
        self.scheduler = scheduler
        self.wake: Callable[[], None] = _no_wake
        self.observer: QueueObserver | None = None
        self._datastore = datastore
        self._withdrawn = withdrawn
        self._hook: Callable[[Endpoint], None] = self._load_changed
        self._waiting: dict[WaitingRequest, None] = {}
        self._draining = False

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, waiting: object) -> bool:
        return waiting in self._waiting

    def begin(self, context: SchedulingContext, now: float) -> WaitingRequest:
        """Make a handle for a request that has to wait; raises `Rejection` 503 while the picker drains."""
        if self._draining:
            raise _shutting_down()
        return WaitingRequest(self, context, now)

    def turn_away(self, request: InferenceRequest, rejection: Rejection, now: float) -> None:
        """Tell the observer of a request that could not wait."""
        if self.observer is not None:
            self.observer.turned_away(request, rejection, now)

    def add(self, waiting: WaitingRequest, now: float) -> None:
        """Start the wait, once the admission has accepted the request."""
        if not self._waiting:  # hooks only while a request waits: they run in every release
            self._datastore.on_release.append(self._hook)
            self._datastore.on_load_change.append(self._hook)
        self._waiting[waiting] = None
        if waiting.context.span is not None:
            waiting.span = waiting.context.span.child(WAIT_SPAN)
        if self.observer is not None:
            self.observer.queued(waiting.request, now)
        self.wake()

    def remove(self, waiting: WaitingRequest, how: Dequeued, now: float) -> None:
        """End the wait; the hooks of the datastore go with the last request."""
        del self._waiting[waiting]
        if waiting.span is not None:
            waiting.span.set("llm_d.epp.flow_control.outcome", how.value)
            waiting.span.end()
        if not self._waiting:
            self._datastore.on_release.remove(self._hook)
            self._datastore.on_load_change.remove(self._hook)
        if self.observer is not None:
            self.observer.dequeued(waiting.request, how, max(0.0, now - waiting.queued_at), now)

    def withdraw(self, waiting: WaitingRequest, now: float) -> None:
        """Tell the admission that a request left; an exception of it must not keep a stream from ending."""
        try:
            self._withdrawn(waiting, now)
        except Exception as error:  # noqa: BLE001  # logged only
            log.error("the admission failed to forget a request: %s", type(error).__name__)

    def drain(self, now: float) -> None:
        """Refuse all requests that wait, and all that would have to, with 503: another picker may have room."""
        self._draining = True
        self.refuse_all(_shutting_down(), now)

    def refuse_all(self, why: Exception, now: float) -> None:
        for waiting in list(self._waiting):
            if waiting.waits:
                waiting.refuse(why, now)
                self.withdraw(waiting, now)

    def _load_changed(self, _: Endpoint) -> None:
        self.wake()


def _no_wake() -> None:
    """The default `wake`: nobody calls `dispatch`."""


def _shutting_down() -> Rejection:
    message = "the picker is shutting down, and the request would have to wait for an endpoint; retry"
    return Rejection(503, "shutting_down", message, reason=SHUTTING_DOWN, retry_after=RETRY_AFTER)
