"""The ext_proc conversation about one HTTP request, as a state machine without I/O: messages in, answers out.

Envoy states its `request_body_mode` in the first message. A data plane that states none is assumed to use
FULL_DUPLEX_STREAMED, which the endpoint picker protocol demands. In that mode and in BUFFERED the pick sees the body. In
STREAMED and NONE Envoy waits for the answer to the request headers first, so the pick sees only these. The same holds for
CONNECT and upgrades, whose body has no end, and for BUFFERED_PARTIAL, which may send a part of the body only.
"""

from collections.abc import Callable
from typing import Final

from adsum.tracing.trace_context import TraceContext
from epp.ext_proc import answers, protocol
from epp.ext_proc.answers import Answer
from epp.ext_proc.exchange_settings import ExchangeSettings
from epp.ext_proc.exchange_state import ExchangeState
from epp.ext_proc.held_request import DUPLEX, HeldRequest
from epp.ext_proc.outcome_ledger import OutcomeLedger
from epp.ext_proc.request_report import Deferral, Observer, RequestDirector, RequestReport
from epp.ext_proc.response_phase import UNSTATED, ResponsePhase
from epp.request.body import Buffer, MemoryBudget
from epp.request.rejection import OwnAnswer, Rejection
from epp.scheduling.pick import Pick
from epp.wire.messages.ext_proc_pb2 import ProcessingMode, ProcessingRequest

_REQUEST: Final = frozenset({"request_headers", "request_body", "request_trailers"})
_STREAMED: Final[int] = ProcessingMode.STREAMED

# Bound once: access to a member of an enumeration is slow in Python 3.11, and every request passes these.
_COLLECTING: Final = ExchangeState.COLLECTING
_WAITING_BODY: Final = ExchangeState.WAITING_BODY
_PASSING: Final = ExchangeState.PASSING
_PICKED: Final = ExchangeState.PICKED
_BOTH_PASS: Final = ExchangeState.BOTH_PASS
_RESPONSE_PASSES: Final = ExchangeState.RESPONSE_PASSES
_OVER: Final = ExchangeState.OVER


_FAULTS: Final = frozenset({"fault", "refused"})
"""Causes of the end of a stream that the data plane did not want."""


class ExchangeError(Exception):
    """Ends the stream with gRPC status 13 (INTERNAL): a fault of the picker, or messages out of order."""


class Exchange:
    """One exchange: `feed` it each message of the stream, send the answers, `close` it when the stream ends for any reason.

    `budget`: the bytes that the bodies of all exchanges may hold together; None: as if this were the only exchange.
    """

    __slots__ = (
        "_answer",
        "_awaits_byte",
        "_deferral",
        "_director",
        "_fail",
        "_outcomes",
        "_pick",
        "_report",
        "_request",
        "_responded_at",
        "_response",
        "_response_mode",
        "_settings",
        "closed_by",
        "state",
    )

    def __init__(
        self,
        director: RequestDirector,
        settings: ExchangeSettings,
        observer: Observer | None = None,
        budget: MemoryBudget | None = None,
    ) -> None:
        self._director = director
        self._settings = settings
        self.state = ExchangeState.HEADERS
        self._request = HeldRequest(settings, budget)
        self._report = RequestReport(director, observer)
        self._response_mode = UNSTATED
        self._response: ResponsePhase | None = None
        self._responded_at = 0.0
        self._awaits_byte = False
        """The next piece of the response body is the first, and the time it comes is learnt from."""
        self._pick: Pick | None = None
        self._outcomes: OutcomeLedger | None = None
        self._deferral: Deferral | None = None
        self._answer: Callable[[list[Answer]], None] | None = None
        self._fail: Callable[[ExchangeError], None] | None = None
        self.closed_by: str | None = None

    def on_answer(
        self, callback: Callable[[list[Answer]], None], failure: Callable[[ExchangeError], None]
    ) -> None:
        """Set the receivers of answers that come outside `feed`, because the pick was deferred, and of a failure of them."""
        self._answer = callback
        self._fail = failure

    def await_outcome(self, outcomes: OutcomeLedger | None) -> None:
        """The stream ends with the request: what becomes of its pick is told elsewhere. To be called before `feed`."""
        self._outcomes = outcomes

    def feed(self, message: ProcessingRequest, now: float) -> list[Answer]:
        """The serialised answers to one message, in the order in which to send them; raises ExchangeError, UnreadableError."""
        # in observability mode Envoy wants no answer (external_processor.proto: observability_mode)
        if self.state is _OVER or message.observability_mode:
            return []
        kind = message.WhichOneof("request")
        if kind in _REQUEST:
            return self._feed_request(kind, message, now)
        match kind:
            case "response_headers":
                return self._response_headers(message, now)
            case "response_body":
                piece = message.response_body
                return self.feed_response_body(piece.body, piece.end_of_stream, now)
            case "response_trailers":
                self.state = self.state.after_response_piece(last=True)
                return self._response_phase().answer_trailers(now)
            case _:
                raise ExchangeError("a message of an unknown kind; expected Envoy's ext_proc v3")

    def feed_body(self, body: Buffer, end_of_stream: bool, now: float) -> list[Answer]:
        """`feed` for a message that has a piece of the request body and nothing else."""
        try:
            return [] if self.state is _OVER else self._request_body(body, end_of_stream, now)
        except Rejection as rejection:
            return [self._reject(rejection, now)]

    def feed_response_body(self, body: bytes, end_of_stream: bool, now: float) -> list[Answer]:
        """`feed` for a message that has a piece of the response body, and nothing else that counts."""
        state = self.state
        if state is _OVER:
            return []
        if self._awaits_byte and self._pick is not None:
            self._awaits_byte = False
            self._report.first_byte(self._pick, now, now)
        response = self._response or self._response_phase()
        if response.follows_body and (end_of_stream or state is not _RESPONSE_PASSES):
            self.state = state.after_response_piece(last=end_of_stream)
        return response.answer_piece(body, end_of_stream, now)

    @property
    def trace(self) -> TraceContext | None:
        """The trace of the request, if it is recorded; for logs."""
        return self._report.recorded

    @property
    def responded(self) -> bool:
        """The response headers are answered: from then on Envoy accepts that the stream ends with OK."""
        return self.state.responded

    @property
    def concluded(self) -> bool:
        """Nothing that the picker says can change any more: the response headers are answered, or the request is refused, or
        has its pick and the stream ends with it."""
        if self._outcomes is not None and self.state is _PICKED:
            return True
        return self.state.responded or self.state is _OVER

    @property
    def may_end(self) -> bool:
        """Whether the stream may end with OK without losing data: Envoy keeps no copy of a body that it expects back."""
        if self.state is ExchangeState.REQUEST_PASSES:
            return not self._request.duplex
        return self.state is ExchangeState.ANSWERED

    @property
    def ends_early(self) -> bool:
        """Whether the stream should end now: response bodies would come that nobody reads, and Envoy keeps its copies."""
        return self._response_mode == _STREAMED and self.may_end

    def sent(self) -> None:
        """All answers are written: release a body that went back to the data plane."""
        if self.state >= _PASSING:
            self._request.body.discard()

    def evict(self, rejection: Rejection, now: float) -> bool:
        """Answer a request that a worker has, so that the data plane takes it back; False: its answer has begun, or it is over.

        Envoy accepts an immediate response at any time until the response headers.
        """
        if self._pick is None or self._answer is None or self.concluded:
            return False
        self._report.evicted(self._pick, rejection, now)
        self._answer([self._refuse(rejection)])
        return True

    def close(self, cause: str, now: float) -> None:
        """The stream is over because of `cause`: release the reservation and the body. May be called twice."""
        if self.closed_by is not None:
            return
        self.closed_by = cause
        self._abandon(now)
        if self._leaves_pick(cause):
            self.state = _OVER
            self._request.body.discard()
            return
        self._report.ended(cause, self._pick)
        self.state = _OVER
        self._request.body.discard()
        pick = self._pick
        if pick is not None:
            pick.evict = None
            self._report.released(pick, self._request.started, cause, now)
            early_ends = self._settings.early_ends
            if early_ends is not None and self._responded_at:
                early_ends.ended(now - self._responded_at)

    def _leaves_pick(self, cause: str) -> bool:
        """Whether the data plane's log tells what becomes of the pick, or has told it."""
        pick, outcomes = self._pick, self._outcomes
        if pick is None or outcomes is None:
            return False
        if cause in _FAULTS or self.state is _OVER or self.state.responded:
            return not outcomes.forget(pick)
        return True

    def _feed_request(self, kind: str, message: ProcessingRequest, now: float) -> list[Answer]:
        if message.HasField("metadata_context") and self._settings.reads_subset_hint:
            hint = protocol.parse_subset(message.metadata_context)
            if hint is not None:
                self._request.subset = hint
        try:
            if kind == "request_headers":
                return self._request_headers(message, now)
            if kind == "request_body":
                piece = message.request_body
                return self._request_body(piece.body, piece.end_of_stream, now)
            return self._request_trailers(now)
        except Rejection as rejection:
            return [self._reject(rejection, now)]

    def _request_headers(self, message: ProcessingRequest, now: float) -> list[Answer]:
        if self.state is not ExchangeState.HEADERS:
            raise ExchangeError("request headers came twice on one stream, or after its response headers")
        request = self._request
        request.read_headers(message, now)
        if self._settings.tracer is not None:
            self._report.began(self._settings.tracer, request.headers)
        if message.HasField("protocol_config"):
            self._response_mode = message.protocol_config.response_body_mode
        if message.request_headers.end_of_stream:
            return self._direct(b"", ExchangeState.WAITING_HEADERS, now)
        if not request.body_is_seen:
            return self._direct(None, ExchangeState.WAITING_OPEN, now)
        self.state = _COLLECTING
        request.body.check_length(request.headers.get("content-length"))  # refuse before the bytes come
        request.body.begin(now, self._refuse_body)
        return [] if request.duplex else [answers.unchanged("request_headers")]

    def _request_body(self, body: Buffer, end_of_stream: bool, now: float) -> list[Answer]:
        request = self._request
        if self.state is not _COLLECTING:
            if self.state.responded and self._pick is None:  # the data plane answered by itself
                return [] if request.duplex else [answers.unchanged("request_body")]
            if not self.state.takes_pieces:
                raise ExchangeError(
                    "a body came before its headers or after its end; expected request_header_mode: SEND"
                )
            self.state, passed = request.pass_piece(self.state, body, end_of_stream)
            return passed
        request.body.add(body)
        if request.is_partial and not end_of_stream:
            return self._direct(None, _WAITING_BODY, now)
        if end_of_stream or not request.duplex:
            # a buffered body is one message, with end_of_stream = false if trailers follow
            return self._direct(request.body.joined(), _WAITING_BODY, now)
        return []

    def _request_trailers(self, now: float) -> list[Answer]:
        state, duplex = self.state, self._request.duplex
        if state is _COLLECTING:
            if not duplex:
                raise Rejection(400, "invalid_request_error", "the request has trailers but no body")
            return self._direct(self._request.body.joined(), ExchangeState.WAITING_TRAILERS, now)
        if duplex and state.waits and state.takes_pieces:
            self.state = ExchangeState.WAITING_TRAILERS
            return []
        self.state = state.after_request()
        return [answers.unchanged("request_trailers")]

    def _direct(self, body: Buffer | None, waiting: ExchangeState, now: float) -> list[Answer]:
        self.state = waiting
        request = self._request
        request.body.end()
        try:
            outcome = self._director.direct(request.headers, body, request.subset, now, self._report.asked())
        except Rejection:
            raise
        except Exception as error:
            raise self._failed(error) from error
        if isinstance(outcome, Pick):
            return self._picked(outcome, now)
        if isinstance(outcome, OwnAnswer):
            self.state = _OVER
            self._report.answered_here()
            return [answers.own(outcome, request.request_id)]
        self._defer(outcome, body, now)
        return []

    def _defer(self, outcome: Deferral, body: Buffer | None, now: float) -> None:
        if self._answer is None:
            outcome.abandon(now)
            raise ExchangeError("the pick was deferred, but nothing listens with on_answer")
        try:
            self._request.charge_headers()
        except Rejection:
            outcome.abandon(now)
            raise
        self._deferral = outcome
        if body:
            self._request.body.replace([body])
        outcome.subscribe(self._settle)

    def _settle(self, outcome: Pick | Exception, now: float) -> None:
        self._deferral = None
        if not self.state.waits or self._answer is None or self._fail is None:
            if isinstance(outcome, Pick):
                self._report.released(outcome, self._request.started, "cancelled", now)
            return
        try:
            if isinstance(outcome, Pick):
                self._answer(self._picked(outcome, now))
            elif isinstance(outcome, Rejection):
                self._answer([self._reject(outcome, now)])
            else:
                self._fail(self._failed(outcome))
        except Exception as error:  # noqa: BLE001  # no caller to raise to: it ends this stream, as in feed
            self._fail(self._failed(error))

    def _picked(self, pick: Pick, now: float) -> list[Answer]:
        waited = self.state
        self._pick = pick
        if self._outcomes is not None:
            self._outcomes.expect(self._report, pick, self._request.started, now)
        elif pick.request.priority < 0:
            pick.evict = self.evict
        self.state = waited.after_pick()
        self._report.picked(pick, now)
        return self._request.answer(pick, waited, self._settings.version, self._report.trace)

    def _failed(self, cause: Exception) -> ExchangeError:
        """An ExchangeError with its cause, which the log shows; mypyc drops the cause of `raise ... from`."""
        fault = ExchangeError(f"the director failed: {type(cause).__name__}")
        fault.__cause__ = cause
        self._report.failed(cause)
        return fault

    def _refuse_body(self, rejection: Rejection) -> None:
        """The budget refuses the body, between two messages."""
        answer = self._reject(rejection, self._request.started)
        if self._answer is not None:
            self._answer([answer])

    def _reject(self, rejection: Rejection, now: float) -> bytes:
        self._report.rejected(rejection, now)
        return self._refuse(rejection)

    def _refuse(self, rejection: Rejection) -> bytes:
        self.state = _OVER
        self._request.body.discard()
        return answers.immediate(rejection, self._settings.chance(), self._request.request_id)

    def _response_phase(self) -> ResponsePhase:
        if self._response is None:
            self._response = ResponsePhase(self._response_mode)
        return self._response

    def _response_headers(self, message: ProcessingRequest, now: float) -> list[Answer]:
        self._abandon(now)
        if message.HasField("protocol_config"):
            self._response_mode = message.protocol_config.response_body_mode
        pick, settings = self._pick, self._settings
        ended = message.response_headers.end_of_stream
        if pick is None:
            self._request.body.discard()
        elif self.state < _BOTH_PASS:
            self._responded(pick, message, ended, now)
        response = self._response  # None in the common case: nobody reads its body
        awaits_body = self._response_mode in DUPLEX if response is None else response.awaits_body
        body_follows = awaits_body and not ended
        self.state = self.state.after_response_headers(body_passes=body_follows)
        if pick is not None and pick.request.awaited is not None:
            self._awaits_byte = body_follows
            if not body_follows:
                self._report.first_byte(pick, now, now)
        answer = answers.unchanged("response_headers") if response is None else response.answer_headers()
        headers_of = settings.response_headers
        if headers_of is not None and pick is not None:
            served = protocol.parse_served(message.metadata_context)
            return [answers.with_response_headers(answer, headers_of(pick, served))]
        return [answer]

    def _responded(self, pick: Pick, message: ProcessingRequest, ended: bool, now: float) -> None:
        settings = self._settings
        status = self._report.responded(pick, message, settings.version, now)
        if ended:
            return
        if settings.reads_responses or pick.request.counts or pick.request.rewritten_from is not None:
            times, headers = (self._request.started, now), message.response_headers.headers
            self._response_phase().open_readers(settings, pick, headers, times, self._report.not_renamed)
        if status == 200 and pick.request.streaming and settings.early_ends is not None:
            self._responded_at = now

    def _abandon(self, now: float) -> None:
        deferral, self._deferral = self._deferral, None
        if deferral is not None:
            deferral.abandon(now)
