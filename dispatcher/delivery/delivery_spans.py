"""The spans of one delivery, under the names of llm-d's Go processor: process-request, http-request, re-enqueue. Pure.

A request keeps its trace context where its producer put it: in its metadata, as for the Go processor, or in its headers.
"""

from collections.abc import Container
from typing import Final

import msgspec

from adsum.tracing.span import Span, Tracer
from adsum.tracing.trace_context import CONTEXT_HEADERS, TRACEPARENT, TRACESTATE, TraceContext
from dispatcher.broker.contract.message import Claim, Request
from dispatcher.delivery.gateway import GatewayAnswer, NoAnswer
from dispatcher.delivery.verdict import Finish, Release, Verdict

WAITING: Final = "wait-in-queue"
PROCESSING: Final = "process-request"
SENDING: Final = "http-request"
REQUEUEING: Final = "re-enqueue"
_REQUEST_ID: Final = "gen_ai.request.id"
_MODEL: Final = "gen_ai.request.model"
_QUEUE: Final = "llm_d.async.queue.name"
_CATEGORY: Final = "llm_d.async.error.category"
_LONGEST_WAIT_MS: Final = 30 * 86_400_000
"""A producer writes when it made a request; a longer wait, or one that began in the future, is a wrong clock."""
_MAX_CONTEXT: Final = 8192
"""Characters of one header; what W3C Baggage lets a platform expect."""


class _Model(msgspec.Struct):
    model: str | msgspec.UnsetType = msgspec.UNSET


_decoder: Final = msgspec.json.Decoder(_Model)


def context_of(request: Request) -> dict[str, str]:
    """The trace context that a request brought; its metadata count before its headers."""
    headers = {name.lower(): value for name, value in request.headers.items()}
    found = {name: request.metadata.get(name) or headers.get(name, "") for name in CONTEXT_HEADERS}
    return {name: text for name, text in found.items() if is_context(text)}


def is_context(text: str) -> bool:
    """Whether a header that carries a trace may be passed on: a producer may write anything into it."""
    return 0 < len(text) <= _MAX_CONTEXT and text.isascii() and text.isprintable()


class DeliverySpans:
    """The trace of one claim. `headers`: those that carry it to the target."""

    __slots__ = ("_begins", "_context", "_processing", "_sending", "_traceparent")

    def __init__(self, tracer: Tracer, queue: str, claim: Claim, now_ms: int) -> None:
        request = claim.request
        self._context = context_of(request)
        trace_id = _trace_id(request)
        if claim.delivery == 1 and now_ms - _LONGEST_WAIT_MS < request.created_ms <= now_ms:
            waited = tracer.begin(WAITING, "consumer", self._context, trace_id, began_ms=request.created_ms)
            if waited.span is not None:
                _describe(waited.span, queue, claim)
                waited.span.end()
        trace = tracer.begin(PROCESSING, "consumer", self._context, trace_id)
        self._traceparent = trace.traceparent
        self._begins = trace.begins
        self._processing = trace.span
        self._sending: Span | None = None
        if self._processing is not None:
            _describe(self._processing, queue, claim)
            if (model := _model_of(request.payload)) is not None:
                self._processing.set(_MODEL, model)

    @property
    def context(self) -> TraceContext | None:
        """For logs; None: it is not recorded."""
        return None if self._processing is None else self._processing.context

    def send(self, headers: dict[str, str], fixed: Container[str]) -> None:
        """The request is about to be sent with these headers, which will carry the trace; `fixed`: those of the operator, which no
        caller overrides."""
        headers.update({name: text for name, text in self._context.items() if name not in fixed})
        if self._begins and TRACESTATE not in fixed:
            headers.pop(TRACESTATE, None)
        if self._processing is not None:
            self._sending = self._processing.child(SENDING, "client")
            self._sending.set("http.request.method", "POST")
            headers[TRACEPARENT] = self._sending.context.traceparent
        elif self._traceparent is not None:
            headers[TRACEPARENT] = self._traceparent

    def answered(self, answer: GatewayAnswer | NoAnswer) -> None:
        sending, processing = self._sending, self._processing
        if sending is None or processing is None:
            return
        if isinstance(answer, GatewayAnswer):
            sending.set("http.response.status_code", answer.status)
        category = _category(answer)
        if category is not None:
            reason = answer.reason if isinstance(answer, NoAnswer) else f"HTTP {answer.status}"
            sending.fail(reason)
            processing.set(_CATEGORY, category)
        sending.end()

    def requeue(self, verdict: Verdict) -> Span | None:
        """The claim goes back to its queue: the span of that, to be ended."""
        if self._processing is None or isinstance(verdict, Finish):
            return None
        span = self._processing.child(REQUEUEING, "producer")
        if not isinstance(verdict, Release):
            span.set("llm_d.async.retry.delay_ms", verdict.delay_ms)
        return span

    def settled(self, verdict: Verdict) -> None:
        """The broker has the verdict; a result that is an error is a failure, as in the Go processor."""
        if self._processing is None or not isinstance(verdict, Finish):
            return
        result = verdict.result
        if result.error_code is not None:
            self._processing.set("error.type", result.error_code.value)
            self._processing.fail(result.error_message)
        elif result.status_code >= 400:
            self._processing.fail("inference request failed")

    def aborted(self, state: str, *, requeued: bool) -> None:
        """Nothing more is sent; `requeued`: its runner puts the claim back, together with others."""
        if self._processing is not None:
            self._processing.fail(state)
            if requeued:
                self._processing.child(REQUEUEING, "producer").end()

    def end(self) -> None:
        for span in (self._sending, self._processing):
            if span is not None:
                span.end()


def _describe(span: Span, queue: str, claim: Claim) -> None:
    span.set(_REQUEST_ID, claim.request.id)
    span.set("llm_d.async.queue.id", queue)
    span.set(_QUEUE, queue)
    span.set("llm_d.async.retry_count", claim.attempt)


def _trace_id(request: Request) -> int:
    """The trace id of a request that brought none: its token is as random, and all its attempts have it."""
    try:
        return int(request.token, 16) if len(request.token) == 32 and request.token.isalnum() else 0
    except ValueError:
        return 0


def _model_of(payload: bytes) -> str | None:
    try:
        model = _decoder.decode(payload).model
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return None if isinstance(model, msgspec.UnsetType) else model


def _category(answer: GatewayAnswer | NoAnswer) -> str | None:
    """The Go processor's name of a fault; None: there is none."""
    if isinstance(answer, NoAnswer):
        return "UNKNOWN"
    if answer.status == 429:
        return "RATE_LIMIT"
    if answer.status >= 500:
        return "SERVER_ERROR"
    return "INVALID_REQ" if answer.status >= 400 else None
