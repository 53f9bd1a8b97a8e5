"""Holds what came of one request while its pick is awaited, and answers it once the pick is there. Pure."""

from typing import Final

from adsum.tracing.span import Trace
from adsum.tracing.trace_context import TRACESTATE
from epp.ext_proc import answers, protocol
from epp.ext_proc.answers import Answer, RoutedKind
from epp.ext_proc.exchange_settings import ExchangeSettings, ProtocolVersion
from epp.ext_proc.exchange_state import ExchangeState
from epp.request.body import Body, Buffer, MemoryBudget, header_bytes
from epp.request.control_headers import REQUEST_ID
from epp.request.model_value import replace_model
from epp.request.subset import Subset
from epp.scheduling.pick import Pick
from epp.wire.messages.ext_proc_pb2 import ProcessingMode, ProcessingRequest

DUPLEX: Final = (ProcessingMode.FULL_DUPLEX_STREAMED, ProcessingMode.GRPC)
_HEADERS_ONLY: Final = (ProcessingMode.NONE, ProcessingMode.STREAMED)
_FULL_DUPLEX: Final[int] = ProcessingMode.FULL_DUPLEX_STREAMED
_BUFFERED_PARTIAL: Final[int] = ProcessingMode.BUFFERED_PARTIAL


class HeldRequest:
    """The headers, the body and the subset hint of one request; `duplex`: a body that comes has to be sent back."""

    __slots__ = ("_controls", "_mode", "body", "duplex", "headers", "started", "subset")

    def __init__(self, settings: ExchangeSettings, budget: MemoryBudget | None) -> None:
        self.body = Body(settings.max_body_bytes, budget or MemoryBudget(settings.max_body_bytes))
        self.headers: dict[str, str] = {}
        self.subset: Subset | None = None
        self.started = 0.0
        self.duplex = True
        self._mode = _FULL_DUPLEX
        self._controls: tuple[str, ...] = ()

    def read_headers(self, message: ProcessingRequest, now: float) -> None:
        """Raises UnreadableError, or `Rejection` 431."""
        self.started = now
        self.headers, self._controls = protocol.read_headers(message.request_headers.headers)
        if message.HasField("protocol_config"):
            self._mode = message.protocol_config.request_body_mode
            self.duplex = self._mode in DUPLEX

    @property
    def request_id(self) -> str:
        """As the data plane or the client gave it; empty: not at all."""
        return self.headers.get(REQUEST_ID, "")

    @property
    def body_is_seen(self) -> bool:
        """Whether the pick sees the body, or a part of it."""
        return self._mode not in _HEADERS_ONLY and not protocol.is_upgrade(self.headers)

    @property
    def is_partial(self) -> bool:
        """Whether a body that does not end is most likely only a part, which cannot be parsed."""
        return self._mode == _BUFFERED_PARTIAL

    def pass_piece(
        self, state: ExchangeState, body: Buffer, end_of_stream: bool
    ) -> tuple[ExchangeState, list[Answer]]:
        """Take a piece that the pick does not see. Returns the state after it, and its answers; raises `Rejection`."""
        if not self.duplex:
            return state, [answers.unchanged("request_body")]
        if state.waits:  # answers keep the order of messages, and the headers wait for the pick
            self.body.add(body)
            return ExchangeState.WAITING_BODY if end_of_stream else ExchangeState.WAITING_PIECES, []
        passed = answers.streamed("request_body", (body,), end_of_stream=end_of_stream)
        return state.after_request() if end_of_stream else state, passed

    def charge_headers(self) -> None:
        """Count the headers with the body; raises `Rejection`."""
        self.body.charge(header_bytes(self.headers))

    def answer(
        self, pick: Pick, waited: ExchangeState, version: ProtocolVersion, trace: Trace | None
    ) -> list[Answer]:
        """The answers to all messages that came until the pick; `waited`: the state of the exchange before it."""
        whole = waited is ExchangeState.WAITING_BODY
        rewritten = pick.request.rewritten_from is not None
        length = self._rewrite_model(pick.request.model) if rewritten else None
        if whole and not self.duplex:
            routed = self._route(pick, "request_body", length, version, trace)
            return [answers.with_body(routed, b"".join(self.body.detach())) if rewritten else routed]
        routed = self._route(pick, "request_headers", length, version, trace)
        if whole or waited is ExchangeState.WAITING_PIECES:
            return [routed, *answers.streamed("request_body", self.body.detach(), end_of_stream=whole)]
        if waited is not ExchangeState.WAITING_TRAILERS:
            return [routed]
        # trailers close the stream, and Envoy 1.40 fails a request that is answered a body it never had
        pieces = self.body.detach()
        body = answers.streamed("request_body", pieces, end_of_stream=False) if pieces else []
        return [routed, *body, answers.unchanged("request_trailers")]

    def _route(
        self, pick: Pick, kind: RoutedKind, length: int | None, version: ProtocolVersion, trace: Trace | None
    ) -> bytes:
        answer = answers.picked(pick, version, self._controls, kind, length)
        if pick.token:
            answer = answers.with_token(answer, pick.token)
        if trace is None or trace.traceparent is None:
            return answer
        drops_state = trace.begins and TRACESTATE in self.headers
        return answers.with_trace(answer, kind, trace.traceparent, drops_state=drops_state)

    def _rewrite_model(self, model: str) -> int | None:
        """Let the body name the model that serves it; return its new Content-Length, None if its client sent none."""
        pieces = replace_model(self.headers, self.body.joined(), model)
        self.body.replace(pieces)
        return sum(map(len, pieces)) if "content-length" in self.headers else None
