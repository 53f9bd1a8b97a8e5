"""The trace that the running task works on, for the lines that it logs. Pure."""

import logging
from contextvars import ContextVar
from typing import Final

from adsum.tracing.trace_context import TraceContext

_current: Final[ContextVar[TraceContext | None]] = ContextVar("trace", default=None)


def traced(context: TraceContext | None) -> None:
    """This task works on that trace until it ends; None: on none that is recorded."""
    _current.set(context)


def note_trace(record: logging.LogRecord) -> bool:
    """A filter of a log's handlers: gives each line the trace of its task, unless it has one."""
    if getattr(record, "trace", None) is None:
        record.trace = _current.get()
    return True
