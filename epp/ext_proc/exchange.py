"""The ext_proc conversation about one HTTP request, as a state machine without I/O: messages in, answers out.

Envoy states its `request_body_mode` in the first message. A data plane that states none is assumed to use
FULL_DUPLEX_STREAMED, which the endpoint picker protocol demands. In that mode and in BUFFERED the pick sees the body. In
STREAMED and NONE Envoy waits for the answer to the request headers first, so the pick sees only these. The same holds for
CONNECT and upgrades, whose body has no end, and for BUFFERED_PARTIAL, which may send a part of the body only.
"""

from collections.abc import Callable
from typing import Final

from adsum.tracing.span import Trace, Tracer
from adsum.tracing.trace_context import TRACESTATE, TraceContext
from epp.ext_proc import answers, protocol
from epp.ext_proc.answers import Answer, RoutedKind
from epp.ext_proc.exchange_settings import ExchangeSettings, ProtocolVersion
from epp.ext_proc.exchange_state import ExchangeState
from epp.ext_proc.first_piece import open_first_piece
from epp.ext_proc.request_director import Deferral, Observer, RequestDirector
from epp.ext_proc.request_spans import REQUEST, RequestSpans
from epp.ext_proc.response_readers import ResponseReaders, open_readers
from epp.request.body import Body, Buffer, MemoryBudget, header_bytes
from epp.request.inference_request import InferenceRequest
from epp.request.model_value import replace_model
from epp.request.own_answer import OwnAnswer
from epp.request.rejection import Rejection
from epp.request.subset import Subset
from epp.scheduling.pick import Pick
from epp.wire.messages.ext_proc_pb2 import ProcessingMode, ProcessingRequest

_HEADERS_ONLY: Final = (ProcessingMode.NONE, ProcessingMode.STREAMED)
_FULL_DUPLEX: Final[int] = ProcessingMode.FULL_DUPLEX_STREAMED
_BUFFERED_PARTIAL: Final[int] = ProcessingMode.BUFFERED_PARTIAL
_REQUEST: Final = frozenset({"request_headers", "request_body", "request_trailers"})
_DUPLEX: Final = (ProcessingMode.FULL_DUPLEX_STREAMED, ProcessingMode.GRPC)
_UNSTATED: Final[int] = -1
"""No response mode was stated: no body is expected; if one comes, it is sent back as in FULL_DUPLEX_STREAMED."""
_STREAMED: Final[int] = ProcessingMode.STREAMED
_SENT_ANYWAY: Final = (*_DUPLEX, ProcessingMode.BUFFERED)
"""The response modes in which the picker cannot do without the body: STREAMED ends with the stream."""
_READABLE: Final = (*_DUPLEX, ProcessingMode.STREAMED, ProcessingMode.BUFFERED)
"""The response modes in which a whole body comes: BUFFERED_PARTIAL may send a part only."""

# Bound once: access to a member of an enumeration is slow in Python 3.11, and every request passes these.
_COLLECTING: Final = ExchangeState.COLLECTING
_WAITING_BODY: Final = ExchangeState.WAITING_BODY
_PASSING: Final = ExchangeState.PASSING
_BOTH_PASS: Final = ExchangeState.BOTH_PASS
_OVER: Final = ExchangeState.OVER


class ExchangeError(Exception):
    """Ends the stream with gRPC status 13 (INTERNAL): a fault of the picker, or messages out of order."""


class Exchange:
    """One exchange: `feed` it each message of the stream, send the answers, `close` it when the stream ends for any reason.

    `budget`: the bytes that the bodies of all exchanges may hold together; None: as if this were the only exchange.
    """

    __slots__ = (
        "_answer",
        "_body",
        "_controls",
        "_deferral",
        "_director",
        "_fail",
        "_headers",
        "_mode",
        "_observer",
        "_pick",
        "_readers",
        "_responded_at",
        "_response_mode",
        "_settings",
        "_spans",
        "_started",
        "_subset",
        "_trace",
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
        self._observer = observer
        self.state = ExchangeState.HEADERS
        self._mode = _FULL_DUPLEX
        self._response_mode = _UNSTATED
        self._headers: dict[str, str] = {}
        self._controls: tuple[str, ...] = ()
        self._subset: Subset | None = None
        self._body = Body(settings.max_body_bytes, budget or MemoryBudget(settings.max_body_bytes))
        self._started = 0.0
        self._responded_at = 0.0
        self._pick: Pick | None = None
        self._readers: ResponseReaders | None = None
        self._deferral: Deferral | None = None
        self._answer: Callable[[list[Answer]], None] | None = None
        self._fail: Callable[[ExchangeError], None] | None = None
        self._trace: Trace | None = None
        self._spans: RequestSpans | None = None
        self.closed_by: str | None = None

    def on_answer(
        self, callback: Callable[[list[Answer]], None], failure: Callable[[ExchangeError], None]
    ) -> None:
        """Set the receivers of answers that come outside `feed`, because the pick was deferred, and of a failure of them."""
        self._answer = callback
        self._fail = failure

    def feed(self, message: ProcessingRequest, now: float) -> list[Answer]:
        """The serialised answers to one message, in the order in which to send them; raises ExchangeError, UnreadableError."""
        # in observability mode Envoy wants no answer (external_processor.proto: observability_mode)
        if self.state is _OVER or message.observability_mode:
            return []
        kind = message.WhichOneof("request")
        if kind in _REQUEST:
            return self._request(kind, message, now)
        match kind:
            case "response_headers":
                return self._response_headers(message, now)
            case "response_body":
                return self._response_body(message, now)
            case "response_trailers":
                self.state = self.state.after_response_piece(last=True)
                if self._readers is not None:
                    return self._readers.answer_trailers(now)
                return [answers.unchanged("response_trailers")]
            case _:
                raise ExchangeError("a message of an unknown kind; expected Envoy's ext_proc v3")

    def feed_body(self, body: Buffer, end_of_stream: bool, now: float) -> list[Answer]:
        """`feed` for a message that has a piece of the request body and nothing else."""
        try:
            return [] if self.state is _OVER else self._request_body(body, end_of_stream, now)
        except Rejection as rejection:
            return [self._reject(rejection, now)]

    @property
    def trace(self) -> TraceContext | None:
        """The trace of the request, if it is recorded; for logs."""
        return None if self._spans is None else self._spans.context

    @property
    def responded(self) -> bool:
        """The response headers are answered: from then on Envoy accepts that the stream ends with OK."""
        return self.state.responded

    @property
    def concluded(self) -> bool:
        """Nothing that the picker says can change any more: the response headers are answered, or the request is refused."""
        return self.state.responded or self.state is _OVER

    @property
    def may_end(self) -> bool:
        """Whether the stream may end with OK without losing data: Envoy keeps no copy of a body that it expects back."""
        if self.state is ExchangeState.REQUEST_PASSES:
            return self._mode not in _DUPLEX
        return self.state is ExchangeState.ANSWERED

    @property
    def ends_early(self) -> bool:
        """Whether the stream should end now: response bodies would come that nobody reads, and Envoy keeps its copies."""
        return self._response_mode == _STREAMED and self.may_end

    def sent(self) -> None:
        """All answers are written: release a body that went back to the data plane."""
        if self.state >= _PASSING:
            self._body.discard()

    def evict(self, rejection: Rejection, now: float) -> bool:
        """Answer a request that a worker has, so that the data plane takes it back; False: its answer has begun, or it is over.

        Envoy accepts an immediate response at any time until the response headers.
        """
        if self._pick is None or self._answer is None or self.concluded:
            return False
        self.state = _OVER
        self._body.discard()
        if self._observer is not None:
            self._observer.evicted(self._pick, rejection, now)
        if self._pick.decision is not None:
            self._pick.decision.evicted(rejection)
        if self._spans is not None:
            self._spans.refused(rejection)
        self._answer([answers.immediate(rejection, self._settings.chance())])
        return True

    def close(self, cause: str, now: float) -> None:
        """The stream is over because of `cause`: release the reservation and the body. May be called twice."""
        if self.closed_by is not None:
            return
        self.closed_by = cause
        self._abandon(now)
        if self._spans is not None:
            self._spans.end(cause)
        self.state = _OVER
        self._body.discard()
        if self._pick is not None:
            self._pick.evict = None
            if self._pick.decision is not None:
                self._pick.decision.ended(cause, now)
            self._director.release(self._pick, now)
            early_ends = self._settings.early_ends
            if early_ends is not None and self._responded_at:
                early_ends.ended(now - self._responded_at)
            if self._observer is not None:
                self._observer.released(self._pick, self._started, now)

    def _request(self, kind: str, message: ProcessingRequest, now: float) -> list[Answer]:
        if message.HasField("metadata_context") and self._settings.reads_subset_hint:
            hint = protocol.parse_subset(message.metadata_context)
            self._subset = self._subset if hint is None else hint
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
        self._started = now
        request = message.request_headers
        self._headers, self._controls = protocol.read_headers(request.headers)
        if self._settings.tracer is not None:
            self._begin_trace(self._settings.tracer)
        if message.HasField("protocol_config"):
            config = message.protocol_config
            self._mode = config.request_body_mode
            self._response_mode = config.response_body_mode
        if request.end_of_stream:
            return self._direct(b"", ExchangeState.WAITING_HEADERS, now)
        if self._mode in _HEADERS_ONLY or protocol.is_upgrade(self._headers):
            return self._direct(None, ExchangeState.WAITING_OPEN, now)
        self.state = _COLLECTING
        self._body.check_length(self._headers.get("content-length"))  # refuse before the bytes come
        self._body.begin(now, self._refuse_body)
        return [] if self._mode in _DUPLEX else [answers.unchanged("request_headers")]

    def _request_body(self, body: Buffer, end_of_stream: bool, now: float) -> list[Answer]:
        if self.state is not _COLLECTING:
            return self._passing_body(body, end_of_stream)
        self._body.add(body)
        if self._mode == _BUFFERED_PARTIAL and not end_of_stream:
            # most likely only a part of the body, which cannot be parsed
            return self._direct(None, _WAITING_BODY, now)
        if end_of_stream or self._mode not in _DUPLEX:
            # a buffered body is one message, with end_of_stream = false if trailers follow
            return self._direct(self._body.joined(), _WAITING_BODY, now)
        return []

    def _passing_body(self, body: Buffer, end_of_stream: bool) -> list[Answer]:
        """Answer a piece that the pick does not see."""
        state = self.state
        if not state.takes_pieces:
            if state.responded and self._pick is None:
                return [] if self._mode in _DUPLEX else [answers.unchanged("request_body")]
            raise ExchangeError(
                "a body came before its headers or after its end; expected request_header_mode: SEND"
            )
        if self._mode not in _DUPLEX:
            return [answers.unchanged("request_body")]
        if state.waits:  # answers keep the order of messages, and the headers wait for the pick
            self._body.add(body)
            self.state = _WAITING_BODY if end_of_stream else ExchangeState.WAITING_PIECES
            return []
        if end_of_stream:
            self.state = state.after_request()
        return answers.streamed("request_body", (body,), end_of_stream=end_of_stream)

    def _request_trailers(self, now: float) -> list[Answer]:
        state, duplex = self.state, self._mode in _DUPLEX
        if state is _COLLECTING:
            if not duplex:
                raise Rejection(400, "invalid_request_error", "the request has trailers but no body")
            return self._direct(self._body.joined(), ExchangeState.WAITING_TRAILERS, now)
        if duplex and state.waits and state.takes_pieces:
            self.state = ExchangeState.WAITING_TRAILERS
            return []
        self.state = state.after_request()
        return [answers.unchanged("request_trailers")]

    def _direct(self, body: Buffer | None, waiting: ExchangeState, now: float) -> list[Answer]:
        self.state = waiting
        self._body.end()
        try:
            outcome = self._ask(body, now)
        except Rejection:
            raise
        except Exception as error:
            raise self._failed(error) from error
        if isinstance(outcome, Pick):
            return self._picked(outcome, now)
        if isinstance(outcome, OwnAnswer):
            self.state = _OVER
            if self._spans is not None:
                self._spans.answered_here()
            return [answers.own(outcome)]
        self._defer(outcome, body, now)
        return []

    def _defer(self, outcome: Deferral, body: Buffer | None, now: float) -> None:
        if self._answer is None:
            outcome.abandon(now)
            raise ExchangeError("the pick was deferred, but nothing listens with on_answer")
        try:
            self._body.charge(header_bytes(self._headers))
        except Rejection:
            outcome.abandon(now)
            raise
        self._deferral = outcome
        if body:
            self._body.replace([body])
        outcome.subscribe(self._settle)

    def _ask(self, body: Buffer | None, now: float) -> Pick | Deferral | OwnAnswer:
        if self._spans is None:
            return self._director.direct(self._headers, body, self._subset, now)
        return self._director.direct(self._headers, body, self._subset, now, self._spans.direct())

    def _settle(self, outcome: Pick | Exception, now: float) -> None:
        self._deferral = None
        if not self.state.waits or self._answer is None or self._fail is None:
            if isinstance(outcome, Pick):
                self._director.release(outcome, now)
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
        if pick.request.priority < 0:
            pick.evict = self.evict
        self.state = waited.after_pick()
        if self._observer is not None:
            self._observer.picked(pick, now)
        if self._spans is not None:
            self._spans.picked(pick)
        whole = waited is _WAITING_BODY
        length = None if pick.request.rewritten_from is None else self._rewrite_model(pick.request)
        if whole and self._mode not in _DUPLEX:
            answer = self._route(pick, "request_body", length)
            rewritten = pick.request.rewritten_from is not None
            return [answers.with_body(answer, b"".join(self._body.detach())) if rewritten else answer]
        answer = self._route(pick, "request_headers", length)
        if whole or waited is ExchangeState.WAITING_PIECES:
            return [answer, *answers.streamed("request_body", self._body.detach(), end_of_stream=whole)]
        if waited is not ExchangeState.WAITING_TRAILERS:
            return [answer]
        # trailers close the stream, and Envoy 1.40 fails a request that is answered a body it never had
        pieces = self._body.detach()
        body = answers.streamed("request_body", pieces, end_of_stream=False) if pieces else []
        return [answer, *body, answers.unchanged("request_trailers")]

    def _route(self, pick: Pick, kind: RoutedKind, length: int | None) -> bytes:
        answer = answers.picked(pick, self._settings.version, self._controls, kind, length)
        trace = self._trace
        if trace is None or trace.traceparent is None:
            return answer
        drops_state = trace.begins and TRACESTATE in self._headers
        return answers.with_trace(answer, kind, trace.traceparent, drops_state=drops_state)

    def _begin_trace(self, tracer: Tracer) -> None:
        self._trace = trace = tracer.begin(REQUEST, "server", self._headers)
        if trace.span is not None:
            self._spans = RequestSpans(trace.span)

    def _failed(self, cause: Exception) -> ExchangeError:
        """An ExchangeError with its cause, which the log shows; mypyc drops the cause of `raise ... from`."""
        fault = ExchangeError(f"the director failed: {type(cause).__name__}")
        fault.__cause__ = cause
        if self._spans is not None:
            self._spans.failed(cause)
        return fault

    def _rewrite_model(self, request: InferenceRequest) -> int | None:
        """Let the body name the model that serves it; return its new Content-Length, None if its client sent none."""
        pieces = replace_model(self._headers, self._body.joined(), request.model)
        self._body.replace(pieces)
        return sum(map(len, pieces)) if "content-length" in self._headers else None

    def _refuse_body(self, rejection: Rejection) -> None:
        """The budget refuses the body, between two messages."""
        answer = self._reject(rejection, self._started)
        if self._answer is not None:
            self._answer([answer])

    def _reject(self, rejection: Rejection, now: float) -> bytes:
        self.state = _OVER
        self._body.discard()
        if self._observer is not None:
            self._observer.rejected(rejection, now)
        if self._spans is not None:
            self._spans.refused(rejection)
        return answers.immediate(rejection, self._settings.chance())

    def _response_headers(self, message: ProcessingRequest, now: float) -> list[Answer]:
        self._abandon(now)
        if message.HasField("protocol_config"):
            self._response_mode = message.protocol_config.response_body_mode
        ended = message.response_headers.end_of_stream
        if self._pick is None:
            self._body.discard()
        elif self.state < _BOTH_PASS:
            self._report(self._pick, message, now)
            if not ended:
                self._open_readers(self._pick, message, now)
                if self._settings.early_ends is not None:
                    self._note_response(self._pick, message, now)
        readers = self._readers
        expected = self._response_mode in _DUPLEX or (
            readers is not None and readers.needed and self._response_mode in _READABLE
        )
        passes = expected and not ended
        self.state = self.state.after_response_headers(body_passes=passes)
        answer = answers.unchanged("response_headers") if readers is None else readers.answer_headers()
        headers_of = self._settings.response_headers
        if headers_of is not None and self._pick is not None:
            served = protocol.parse_served(message.metadata_context)
            return [answers.with_response_headers(answer, headers_of(self._pick, served))]
        return [answer]

    def _note_response(self, pick: Pick, message: ProcessingRequest, now: float) -> None:
        if pick.request.streaming and protocol.read_status(message.response_headers.headers) == 200:
            self._responded_at = now

    def _open_readers(self, pick: Pick, message: ProcessingRequest, now: float) -> None:
        openers = self._settings.response_readers
        passing = self._settings.passing_readers if self._response_mode in _SENT_ANYWAY else ()
        request = pick.request
        needed = bool(openers or request.counts) or request.rewritten_from is not None
        if not needed and not passing:
            return  # the common case
        head = protocol.read_response_head(message.response_headers.headers)
        readers = open_readers((*passing, *openers), pick, head, self._started, now, self._not_renamed)
        mode = _FULL_DUPLEX if self._response_mode == _UNSTATED else self._response_mode
        if mode in _READABLE:
            readers += open_first_piece(request.counts, head)
        if not readers:
            return
        if mode in _READABLE:
            self._readers = ResponseReaders(readers, mode, head, needed=needed)
        else:
            self._settings.unread_bodies.missing()

    def _not_renamed(self) -> None:
        if self._observer is not None:
            self._observer.not_renamed()

    def _response_body(self, message: ProcessingRequest, now: float) -> list[Answer]:
        piece = message.response_body
        if self._readers is not None:
            self.state = self.state.after_response_piece(last=piece.end_of_stream)
            return self._readers.answer_piece(piece.body, end_of_stream=piece.end_of_stream, now=now)
        if self._response_mode not in _DUPLEX and self._response_mode != _UNSTATED:
            return [answers.unchanged("response_body")]
        self.state = self.state.after_response_piece(last=piece.end_of_stream)
        return answers.streamed("response_body", (piece.body,), end_of_stream=piece.end_of_stream)

    def _report(self, pick: Pick, message: ProcessingRequest, now: float) -> None:
        headers = message.response_headers.headers
        served = protocol.parse_served(message.metadata_context)
        if served is not None and self._settings.version is ProtocolVersion.V1_0:
            self._director.served(pick, served, now)
            if served != pick.endpoints[0].destination:
                attempts = protocol.read_attempts(headers)
                if attempts is not None:
                    self._director.retried(pick, attempts, now)
        status = protocol.read_status(headers)
        if status is None:
            return
        failure = protocol.read_failure(headers) if status >= 500 else None
        self._director.responded(pick, status, now, failure)
        if self._observer is not None:
            self._observer.responded(pick, status, now)
        if self._spans is not None:
            self._spans.responded(status, served, pick.endpoints[0].destination)

    def _abandon(self, now: float) -> None:
        deferral, self._deferral = self._deferral, None
        if deferral is not None:
            deferral.abandon(now)
