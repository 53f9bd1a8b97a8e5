"""The states of an exchange and the transitions between them. Pure."""

from collections.abc import Mapping
from enum import IntEnum, auto
from typing import Final


class ExchangeState(IntEnum):
    """The states of an exchange, in the order of a conversation.

    PASSING: pieces of a body are answered as they come. WAITING: the pick was requested; the rest of the name is what is
    answered together with it::

        HEADERS ─┬─ the pick sees the body ─► COLLECTING ─┬─ last piece ─► WAITING_BODY ─────┐
                 │                                        └─ trailers ───► WAITING_TRAILERS ─┤
                 ├─ there is no body ───────────────────────────────────► WAITING_HEADERS ───┴─ pick ─► PICKED
                 │                                                                                        ▲
                 └─ the pick does not see it ─► WAITING_OPEN ── piece ──► WAITING_PIECES                  │
                                                     └───────── pick ───────────┴──► PASSING ─ last piece ┘

    WAITING_OPEN and WAITING_PIECES become WAITING_HEADERS, WAITING_BODY or WAITING_TRAILERS when the request ends. The
    response headers lead from PASSING to BOTH_PASS or REQUEST_PASSES, from every other state to RESPONSE_PASSES or
    ANSWERED. If they come before a pick, the data plane answered by itself, and the rest of the request is ignored::

        BOTH_PASS ───── request ends ──► RESPONSE_PASSES
            │ response ends                    │ response ends
            ▼                                  ▼
        REQUEST_PASSES ─ request ends ────► ANSWERED

    A rejection and the end of the stream lead to OVER from every state.
    """

    HEADERS = auto()
    COLLECTING = auto()
    WAITING_OPEN = auto()
    WAITING_PIECES = auto()
    WAITING_HEADERS = auto()
    WAITING_BODY = auto()
    WAITING_TRAILERS = auto()
    PASSING = auto()
    PICKED = auto()
    BOTH_PASS = auto()
    REQUEST_PASSES = auto()
    RESPONSE_PASSES = auto()
    ANSWERED = auto()
    OVER = auto()

    @property
    def waits(self) -> bool:
        """The pick was requested and has not come."""
        return ExchangeState.WAITING_OPEN <= self <= ExchangeState.WAITING_TRAILERS

    @property
    def takes_pieces(self) -> bool:
        """Pieces of the request body may come that the pick does not see."""
        return self in _AFTER_REQUEST

    @property
    def responded(self) -> bool:
        """The response headers are answered."""
        return ExchangeState.BOTH_PASS <= self <= ExchangeState.ANSWERED

    def after_pick(self) -> "ExchangeState":
        return _AFTER_PICK[self]

    def after_request(self) -> "ExchangeState":
        """The request ended, with the last piece of its body or with trailers."""
        return _AFTER_REQUEST.get(self, self)

    def after_response_headers(self, *, body_passes: bool) -> "ExchangeState":
        return (_RESPONSE_PASSES if body_passes else _RESPONSE_ENDED)[self]

    def after_response_piece(self, *, last: bool) -> "ExchangeState":
        """A piece before the response headers changes nothing."""
        return self.after_response_headers(body_passes=not last) if self.responded else self


_PASSING: Final = (ExchangeState.PASSING, ExchangeState.BOTH_PASS, ExchangeState.REQUEST_PASSES)
_OPEN: Final = (ExchangeState.WAITING_OPEN, ExchangeState.WAITING_PIECES)

# Tables, since access to a member of an enumeration is slow in Python 3.11 and every request passes here.
_AFTER_PICK: Final[Mapping[ExchangeState, ExchangeState]] = {
    state: ExchangeState.PASSING if state in _OPEN else ExchangeState.PICKED for state in ExchangeState
}
_AFTER_REQUEST: Final[Mapping[ExchangeState, ExchangeState]] = {
    ExchangeState.WAITING_OPEN: ExchangeState.WAITING_HEADERS,
    ExchangeState.WAITING_PIECES: ExchangeState.WAITING_BODY,
    ExchangeState.PASSING: ExchangeState.PICKED,
    ExchangeState.BOTH_PASS: ExchangeState.RESPONSE_PASSES,
    ExchangeState.REQUEST_PASSES: ExchangeState.ANSWERED,
}
_RESPONSE_PASSES: Final[Mapping[ExchangeState, ExchangeState]] = {
    state: ExchangeState.BOTH_PASS if state in _PASSING else ExchangeState.RESPONSE_PASSES
    for state in ExchangeState
}
_RESPONSE_ENDED: Final[Mapping[ExchangeState, ExchangeState]] = {
    state: ExchangeState.REQUEST_PASSES if state in _PASSING else ExchangeState.ANSWERED
    for state in ExchangeState
}
