"""The Protocols of a trace, which are all that the code between a request and its answer knows of it. Pure."""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

from adsum.tracing.trace_context import TraceContext

AttributeValue: TypeAlias = str | bool | int | float | Sequence[str] | Sequence[float]
Kind: TypeAlias = Literal["internal", "server", "client", "producer", "consumer"]
"""https://opentelemetry.io/docs/concepts/signals/traces/#span-kind"""


class Span(Protocol):
    """A part of a request's way that is recorded, from the call that made it to `end`. After `end` it stays as it is, and `child` raises RuntimeError."""

    @property
    def context(self) -> TraceContext: ...

    def child(self, name: str, kind: Kind = "internal", *, began_ns: int | None = None) -> "Span":
        """A part of this part; `began_ns`: Unix nanoseconds, if it began before this call."""

    def set(self, name: str, value: AttributeValue) -> None:
        """Set an attribute; long text is cut."""

    def fail(self, reason: str) -> None:
        """Give it the status Error."""

    def end(self, at_ns: int | None = None) -> None:
        """`at_ns`: Unix nanoseconds, if it ended before this call."""


class Trace:
    """What a tracer decided about one request.

    `span`: None if nothing is recorded. `traceparent`: goes to the next process in place of the one that came; None: that
    one stays. `begins`: no valid one came.
    """

    __slots__ = ("begins", "span", "traceparent")

    def __init__(self, span: Span | None, traceparent: str | None, *, begins: bool) -> None:
        self.span = span
        self.traceparent = traceparent
        self.begins = begins


class Tracer(Protocol):
    def begin(
        self,
        name: str,
        kind: Kind,
        carrier: Mapping[str, str],
        trace_id: int = 0,
        *,
        began_ms: int | None = None,
    ) -> Trace:
        """Begin this process' part of a trace; `carrier`: headers or metadata with lower-case names.

        `trace_id`: of a trace that begins here; 0: a random one. `began_ms`: Unix milliseconds, if it began before this call.
        """
