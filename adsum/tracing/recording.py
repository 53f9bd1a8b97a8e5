"""Records spans, and hands each over when it ends; a request that is not recorded has none.

A span of OpenTelemetry's SDK takes 30 µs to begin, describe and end, one of these 5 (benchmarks/README.md, tracing).
"""

import random
import time
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from adsum.tracing.sampling import Sampling
from adsum.tracing.span import AttributeValue, Kind, Trace
from adsum.tracing.trace_context import (
    NOT_RECORDED,
    TRACEPARENT,
    TRACESTATE,
    TraceContext,
    parse_traceparent,
)

MAX_TEXT: Final = 256
"""Characters of an attribute; clients choose some of them."""
MAX_STATE: Final = 512
"""Characters of a `tracestate` that is recorded: what a vendor should propagate at least (W3C Trace Context, 3.3.1.5)."""
_AS_IT_CAME: Final = Trace(None, None, begins=False)


class RecordedSpan:
    """A `adsum.tracing.span.Span`. Ids as bytes; `parent_id` is empty for the root of a trace.

    `remote`: the parent is of another process. `began`: Unix nanoseconds. `failure`: None unless the status is Error.
    """

    __slots__ = (
        "_recorder",
        "attributes",
        "began",
        "failure",
        "kind",
        "name",
        "parent_id",
        "remote",
        "span_id",
        "state",
        "trace_id",
    )

    def __init__(
        self,
        recorder: "Recorder",
        name: str,
        kind: Kind,
        trace_id: bytes,
        parent_id: bytes,
        began_ms: int | None,
    ) -> None:
        self._recorder: Recorder | None = recorder
        self.name = name
        self.kind = kind
        self.trace_id = trace_id
        self.span_id = (recorder.bits(64) or 1).to_bytes(8, "big")
        self.parent_id = parent_id
        self.remote = False
        self.state = ""
        self.began = time.time_ns() if began_ms is None else began_ms * 1_000_000
        self.attributes: dict[str, AttributeValue] = {}
        self.failure: str | None = None

    @property
    def context(self) -> TraceContext:
        return TraceContext(
            int.from_bytes(self.trace_id, "big"), int.from_bytes(self.span_id, "big"), sampled=True
        )

    def child(self, name: str, kind: Kind = "internal", *, began_ms: int | None = None) -> "RecordedSpan":
        recorder = self._recorder
        if recorder is None:
            raise RuntimeError(f"the span {name!r} begins in one that has ended")
        child = RecordedSpan(recorder, name, kind, self.trace_id, self.span_id, began_ms)
        child.state = self.state
        return child

    def set(self, name: str, value: AttributeValue) -> None:
        self.attributes[name] = value[:MAX_TEXT] if isinstance(value, str) else value

    def fail(self, reason: str) -> None:
        self.failure = reason[:MAX_TEXT]

    def end(self) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.ended(self, time.time_ns())


Ended: TypeAlias = Callable[[RecordedSpan, int], None]
"""Gets a span, which does not change any more, and its end in Unix nanoseconds."""


class Recorder:
    """What all spans of a program have in common."""

    __slots__ = ("bits", "ended")

    def __init__(self, ended: Ended, rng: random.Random) -> None:
        self.ended = ended
        self.bits = rng.getrandbits


class SpanRecorder:
    """The tracer of a program that records: which requests have a span, and what their `traceparent` says."""

    def __init__(self, recorder: Recorder, sampling: Sampling) -> None:
        self._recorder = recorder
        self._sampling = sampling
        self._below = sampling.below
        self._bits = recorder.bits

    def begin(
        self,
        name: str,
        kind: Kind,
        carrier: Mapping[str, str],
        trace_id: int = 0,
        *,
        began_ms: int | None = None,
    ) -> Trace:
        came = carrier.get(TRACEPARENT)
        if came is None and not trace_id:
            # most requests of a picker: decided by the digits that are sent anyway
            digits = self._bits(192).to_bytes(24, "big").hex()
            if digits[16:32] >= self._below:
                return Trace(None, f"00-{digits[:32]}-{digits[32:]}-00", begins=True)
            trace_id = int(digits[:32], 16)
        elif came is not None and self._sampling.parent_based and NOT_RECORDED.fullmatch(came) is not None:
            return _AS_IT_CAME
        parent = None if came is None else parse_traceparent(came)
        if parent is None:
            trace_id = trace_id or self._bits(128) or 1
            if not self._sampling.records(None, trace_id):
                return Trace(None, _unrecorded(trace_id, self._bits(64) or 1), begins=True)
            parent_id = b""
        elif self._sampling.records(parent, parent.trace_id):
            trace_id, parent_id = parent.trace_id, parent.span_id.to_bytes(8, "big")
        else:  # a decision of ours that differs from the sender's must be told
            told = _unrecorded(parent.trace_id, parent.span_id) if parent.sampled else None
            return Trace(None, told, begins=False)
        id_bytes = trace_id.to_bytes(16, "big")
        span = RecordedSpan(self._recorder, name, kind, id_bytes, parent_id, began_ms)
        if parent is not None:
            span.remote = True
            span.state = _state(carrier.get(TRACESTATE, ""))
        return Trace(span, f"00-{id_bytes.hex()}-{span.span_id.hex()}-01", begins=parent is None)


def _unrecorded(trace_id: int, span_id: int) -> str:
    return f"00-{trace_id:032x}-{span_id:016x}-00"


def _state(text: str) -> str:
    return text if len(text) <= MAX_STATE and text.isascii() and text.isprintable() else ""
