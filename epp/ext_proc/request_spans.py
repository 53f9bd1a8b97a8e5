"""The spans of one exchange, under the Go picker's names: gateway.request, and in it gateway.request_orchestration. Pure.

No prompt, no body and no header but the request id goes into them.
"""

from typing import Final

from adsum.tracing.span import Span
from adsum.tracing.trace_context import TraceContext
from epp.request.inference_request import InferenceRequest
from epp.request.rejection import Rejection
from epp.scheduling.pick import Pick

REQUEST: Final = "gateway.request"
ORCHESTRATION: Final = "gateway.request_orchestration"
STATUS: Final = "http.response.status_code"
"""https://opentelemetry.io/docs/specs/semconv/http/http-spans/"""
ENDPOINT: Final = "llm_d.epp.endpoint"
SERVED: Final = "llm_d.epp.endpoint.served"


class RequestSpans:
    """What becomes of one request, from its headers to the end of its stream."""

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

    def picked(self, pick: Pick) -> None:
        _identify(self._request, pick.request)
        self._request.set(ENDPOINT, pick.endpoints[0].destination)
        self._end_orchestration()

    def refused(self, rejection: Rejection) -> None:
        for span in (self._request, self._orchestration):
            if span is not None:
                span.set("error.type", rejection.code)
                span.fail(rejection.reason or rejection.code)
        self._answered = True
        self._request.set(STATUS, rejection.status)
        self._end_orchestration()

    def failed(self, error: Exception) -> None:
        """A fault of the picker or of a plugin."""
        for span in (self._request, self._orchestration):
            if span is not None:
                span.set("error.type", type(error).__name__)
                span.fail("the director failed")
        self._answered = True
        self._end_orchestration()

    def answered_here(self) -> None:
        """The picker answered by itself."""
        self._answered = True
        self._request.set(STATUS, 200)
        self._end_orchestration()

    def responded(self, status: int, served: str | None, picked: str) -> None:
        """The response headers came; `served`: who sent them, if the data plane says so."""
        self._answered = True
        self._request.set(STATUS, status)
        if served is not None and served != picked:
            self._request.set(SERVED, served)
        if status >= 400:
            self._request.fail(f"HTTP {status}")

    def end(self, cause: str) -> None:
        """The stream is over because of `cause`."""
        if not self._answered:
            self._request.fail(f"the stream ended before an answer: {cause}")
        self._end_orchestration()
        self._request.end()

    def _end_orchestration(self) -> None:
        if self._orchestration is not None:
            self._orchestration.end()


def _identify(span: Span, request: InferenceRequest) -> None:
    span.set("gen_ai.request.id", request.request_id)
    if request.model:
        span.set("gen_ai.request.model", request.model)
