"""The spans of one exchange, under the Go picker's names: gateway.request, and in it gateway.request_orchestration. Pure.

No prompt, no body and no header but the request id goes into them.
"""

from typing import Final

from adsum.tracing.span import Span
from adsum.tracing.trace_context import TraceContext
from epp.request.rejection import Rejection
from epp.scheduling.pick import Pick

REQUEST: Final = "gateway.request"
ORCHESTRATION: Final = "gateway.request_orchestration"
STATUS: Final = "http.response.status_code"
"""https://opentelemetry.io/docs/specs/semconv/http/http-spans/"""
ENDPOINT: Final = "llm_d.epp.endpoint"
SERVED: Final = "llm_d.epp.endpoint.served"


class RequestSpans:
    """The spans of one request, from its headers to the end of its stream; what became of its pick is read from the pick."""

    __slots__ = ("_answered", "_orchestration", "_request")

    def __init__(self, request: Span) -> None:
        self._request = request
        self._orchestration: Span | None = None
        self._answered = False

    @property
    def context(self) -> TraceContext:
        return self._request.context

    def direct(self) -> Span:
        """The request is complete, and the director is asked."""
        self._orchestration = self._request.child(ORCHESTRATION, "server")
        return self._orchestration

    def directed(self) -> None:
        """The director has decided."""
        if self._orchestration is not None:
            self._orchestration.end()

    def answered_here(self) -> None:
        """The picker answered by itself."""
        self._answered = True
        self._request.set(STATUS, 200)
        self.directed()

    def failed(self, why: Exception) -> None:
        """It was refused, or a fault of the picker or of a plugin ended it."""
        self._answered = True
        kind, reason = type(why).__name__, "the director failed"
        if isinstance(why, Rejection):
            kind, reason = why.code, why.reason or why.code
            self._request.set(STATUS, why.status)
        for span in (self._request, self._orchestration):
            if span is not None:
                span.set("error.type", kind)
                span.fail(reason)
        self.directed()

    def end(self, cause: str, pick: Pick | None) -> None:
        """The stream is over because of `cause`."""
        if pick is not None:
            self._read(pick)
        if not self._answered:
            self._request.fail(f"the stream ended before an answer: {cause}")
        self.directed()
        self._request.end()

    def _read(self, pick: Pick) -> None:
        span, picked = self._request, pick.endpoints[0].destination
        span.set("gen_ai.request.id", pick.request.request_id)
        if pick.request.model:
            span.set("gen_ai.request.model", pick.request.model)
        span.set(ENDPOINT, picked)
        if pick.served_by and pick.served_by != picked:
            span.set(SERVED, pick.served_by)
        if pick.status and pick.evicted_for is None:
            self._answered = True
            span.set(STATUS, pick.status)
            if pick.status >= 400:
                span.fail(f"HTTP {pick.status}")
