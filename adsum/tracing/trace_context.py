"""Reads and writes `traceparent`, by which a trace goes from process to process, and knows the running task's trace. Pure.

https://www.w3.org/TR/trace-context/
"""

import logging
import re
from contextvars import ContextVar
from typing import Final

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
BAGGAGE: Final = "baggage"
CONTEXT_HEADERS: Final = (TRACEPARENT, TRACESTATE, BAGGAGE)

LENGTH: Final = 55
"""Characters of a `traceparent` of version 00; later versions may be longer."""
# bounded: at most 55 characters
_VERSION_00: Final = re.compile("[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_SAMPLED: Final = 0x01
NOT_RECORDED: Final = re.compile("00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f][02468ace]")
"""A whole `traceparent` of version 00 whose sender does not record the trace."""


class TraceContext:
    """One span of a trace, as other processes know it; `sampled`: whether its spans are recorded."""

    __slots__ = ("sampled", "span_id", "trace_id")

    def __init__(self, trace_id: int, span_id: int, *, sampled: bool) -> None:
        self.trace_id = trace_id
        self.span_id = span_id
        self.sampled = sampled

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{'01' if self.sampled else '00'}"


def parse_traceparent(text: str) -> TraceContext | None:
    """None if it is malformed: then the trace begins anew, and a `tracestate` beside it means nothing."""
    if _VERSION_00.fullmatch(text, 0, LENGTH) is None or text.startswith("ff"):
        return None
    if len(text) != LENGTH and (text.startswith("00") or text[LENGTH] != "-"):
        return None
    trace_id, span_id = int(text[3:35], 16), int(text[36:52], 16)
    if not trace_id or not span_id:
        return None
    return TraceContext(trace_id, span_id, sampled=bool(int(text[53:LENGTH], 16) & _SAMPLED))


_current: Final[ContextVar[TraceContext | None]] = ContextVar("trace", default=None)


def traced(context: TraceContext | None) -> None:
    """This task works on that trace until it ends; None: on none that is recorded."""
    _current.set(context)


def note_trace(record: logging.LogRecord) -> bool:
    """A filter of a log's handlers: gives each line the trace of its task, unless it has one."""
    if getattr(record, "trace", None) is None:
        record.trace = _current.get()
    return True
