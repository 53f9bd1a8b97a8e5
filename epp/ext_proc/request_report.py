"""Reports what becomes of one request to its director, and to whoever counts it, traces it or notes its decision. Pure.

An exchange knows the director that picks, and the observer that counts, by the Protocols here.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from adsum.tracing.span import Span, Trace, Tracer
from adsum.tracing.trace_context import TraceContext
from epp.ext_proc import protocol
from epp.ext_proc.access_log_entry import LoggedOutcome
from epp.ext_proc.exchange_settings import ProtocolVersion
from epp.ext_proc.request_spans import REQUEST, RequestSpans
from epp.outliers.settings import Failure
from epp.request.rejection import OwnAnswer, Rejection
from epp.request.subset import Subset
from epp.scheduling.pick import Pick
from epp.wire.messages.ext_proc_pb2 import ProcessingRequest


class Deferral(Protocol):
    """A pick that comes later, because the request waits for admission."""

    def subscribe(self, settle: Callable[[Pick | Exception, float], None]) -> None:
        """Call `settle` once, with the pick or the reason why there is none, and the time."""

    def abandon(self, now: float) -> None:
        """The client is gone; `settle` is not called after this."""


class RequestDirector(Protocol):
    """The part of `epp.scheduling.director.Director` that an exchange needs."""

    def direct(
        self,
        headers: Mapping[str, str],
        body: bytes | bytearray | memoryview | None,
        subset: Subset | None,
        now: float,
        span: Span | None = None,
    ) -> Pick | Deferral | OwnAnswer:
        """Pick and reserve; `body` None: there may be one, but the pick does not see it. Raises `Rejection`.

        `span`: given only if the trace is recorded.
        """

    @property
    def picks(self) -> "PickFollower":
        """Is told what becomes of each pick."""


class PickFollower(Protocol):
    """The part of `epp.scheduling.picks_in_flight.PicksInFlight` that an exchange needs."""

    def served(self, pick: Pick, destination: str) -> None:
        """The data plane reports which destination served the request."""

    def retried(self, pick: Pick, attempts: int, now: float) -> None:
        """The data plane made so many attempts before `served`."""

    def fell_back(self, pick: Pick, reason: str, now: float) -> None:
        """The decode worker computed the prompt, and no prefill worker did; called before `responded`."""

    def responded(self, pick: Pick, status: int, now: float, failure: Failure | None = None) -> None:
        """The response headers came; `failure`: the data plane answered in place of the worker."""

    def first_byte(self, pick: Pick, at: float, now: float) -> None:
        """The first byte of a streamed answer came at `at`, as is heard now."""

    def release(self, pick: Pick, now: float) -> None:
        """The stream is over."""


class Observer(Protocol):
    """Notified of the steps of each request, for metrics."""

    def picked(self, pick: Pick, now: float) -> None:
        """A request got its pick."""

    def rejected(self, rejection: Rejection, now: float) -> None:
        """A request was answered by the picker itself."""

    def evicted(self, pick: Pick, rejection: Rejection, now: float) -> None:
        """A request that had its pick was answered by the picker itself."""

    def responded(self, pick: Pick, status: int, now: float) -> None:
        """The response headers came."""

    def not_renamed(self) -> None:
        """An answer took too much work to give its client the name of the model that it asked for."""

    def released(self, pick: Pick, started: float, now: float) -> None:
        """The stream of a request that began at `started` is over."""


class RequestReport:
    """`trace`: the trace that the request belongs to, recorded or not; None: no traces are made."""

    __slots__ = ("_observer", "_picks", "_spans", "trace")

    def __init__(self, director: RequestDirector, observer: Observer | None) -> None:
        self._picks = director.picks
        self._observer = observer
        self._spans: RequestSpans | None = None
        self.trace: Trace | None = None

    @property
    def recorded(self) -> TraceContext | None:
        """The trace, if it is recorded."""
        return None if self._spans is None else self._spans.context

    def began(self, tracer: Tracer, headers: Mapping[str, str]) -> None:
        self.trace = tracer.begin(REQUEST, "server", headers)
        if self.trace.span is not None:
            self._spans = RequestSpans(self.trace.span)

    def asked(self) -> Span | None:
        """The director is asked; the span for what it does, if the trace is recorded."""
        return None if self._spans is None else self._spans.direct()

    def picked(self, pick: Pick, now: float) -> None:
        if self._observer is not None:
            self._observer.picked(pick, now)
        if self._spans is not None:
            self._spans.directed()

    def rejected(self, rejection: Rejection, now: float) -> None:
        if self._observer is not None:
            self._observer.rejected(rejection, now)
        self.failed(rejection)

    def evicted(self, pick: Pick, rejection: Rejection, now: float) -> None:
        if self._observer is not None:
            self._observer.evicted(pick, rejection, now)
        pick.evicted_for = rejection
        self.failed(rejection)

    def answered_here(self) -> None:
        if self._spans is not None:
            self._spans.answered_here()

    def failed(self, why: Exception) -> None:
        """A refusal, or a fault."""
        if self._spans is not None:
            self._spans.failed(why)

    def responded(
        self, pick: Pick, message: ProcessingRequest, version: ProtocolVersion, now: float
    ) -> int | None:
        """The response headers came. Returns the status. Raises UnreadableError."""
        headers = message.response_headers.headers
        served = protocol.parse_served(message.metadata_context)
        chosen = pick.endpoints[0].destination
        if served is not None and version is ProtocolVersion.V1_0:
            self._picks.served(pick, served)
            if served != chosen:
                attempts = protocol.read_attempts(headers)
                if attempts is not None:
                    self._picks.retried(pick, attempts, now)
        status = protocol.read_status(headers)
        if status is not None:
            failure = protocol.read_failure(headers) if status >= 500 else None
            if pick.helpers and (reason := protocol.read_fallback(headers)):
                self._picks.fell_back(pick, reason, now)
            self._answered(pick, status, failure, now)
        return status

    def heard(self, pick: Pick, outcome: LoggedOutcome, started: float, now: float) -> None:
        """The data plane's log says that there is an answer; `started`: when the request came."""
        served = outcome.served_by or None
        if served is not None:
            self._picks.served(pick, served)
            if served != pick.endpoints[0].destination and outcome.attempts:
                self._picks.retried(pick, outcome.attempts, now)
        came = now if outcome.first_byte is None else min(now, started + outcome.first_byte)
        if outcome.fell_back:
            self._picks.fell_back(pick, outcome.fell_back, now)
        self._answered(pick, outcome.status, outcome.failure, came)

    def first_byte(self, pick: Pick, at: float, now: float) -> None:
        """The answer began at `at`, as is heard now; of its body, where that is seen, else of its headers. Only the first call counts."""
        if pick.request.awaited is not None:
            self._picks.first_byte(pick, at, now)

    def _answered(self, pick: Pick, status: int, failure: Failure | None, now: float) -> None:
        self._picks.responded(pick, status, now, failure)
        if self._observer is not None:
            self._observer.responded(pick, status, now)

    def not_renamed(self) -> None:
        if self._observer is not None:
            self._observer.not_renamed()

    def ended(self, cause: str, pick: Pick | None) -> None:
        """The stream is over, whether or not there was a pick."""
        if self._spans is not None:
            self._spans.end(cause, pick)

    def released(self, pick: Pick, started: float, cause: str, now: float) -> None:
        try:
            self._picks.release(pick, now)
            if self._observer is not None:
                self._observer.released(pick, started, now)
        finally:
            pick.over(cause, now)
