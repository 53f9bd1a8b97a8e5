"""Measures one answer while it passes: its size, its times, and the tokens that it says were used.

With `--usage-metrics` that is `AnswerMeter`. Without it, `PromptMeter` reads the end of what passes through the picker anyway.
"""

from collections.abc import Callable
from typing import Final

from epp.ext_proc.response_body import ResponseHead
from epp.request.body import Buffer
from epp.response.usage import NO_USAGE, Usage
from epp.response.usage_reader import UsageReader, read_end
from epp.telemetry.answer_tally import ITL, RESPONSE_BYTES, observe, observe_usage
from epp.telemetry.request_tally import RequestHistograms

_EVENTS: Final = "text/event-stream"
END: Final = 2048
"""Bytes of an answer that a `PromptMeter` holds. A usage has up to 500, and little comes after it."""


def _is_readable(head: ResponseHead) -> bool:
    kind = head.media_type
    return not head.encoded and (kind in ("", _EVENTS) or kind.endswith("json"))


def _is_served(head: ResponseHead) -> bool:
    return head.status is not None and 200 <= head.status < 300


def open_prompt_meter(head: ResponseHead, counted: Callable[[int], None]) -> "PromptMeter | None":
    """None: the answer says no tokens, or none that can be read."""
    return PromptMeter(counted) if _is_served(head) and _is_readable(head) else None


class PromptMeter:
    """A ResponseBodyReader that changes nothing: `counted` is told the tokens of the prompt at the end of a whole answer."""

    __slots__ = ("_counted", "_end")

    def __init__(self, counted: Callable[[int], None]) -> None:
        self._counted = counted
        self._end = b""

    @property
    def changes_body(self) -> bool:
        return False

    def read(self, piece: Buffer, now: float) -> None:
        self._end = bytes(piece[-END:]) if len(piece) >= END else (self._end + piece)[-END:]

    def end(self, now: float) -> bytes:
        usage = read_end(self._end)
        if usage.input:
            self._counted(usage.input)
        return b""


class AnswerMeter:
    """A ResponseBodyReader that changes nothing.

    Of an answer that is compressed, or neither JSON nor server-sent events, no tokens are known; of one without a 2xx
    status only the size counts. Nothing but ITL is counted of an answer that breaks off, as in the Go picker.
    `counted`: called at the end with what the answer said.
    """

    __slots__ = (
        "_counted",
        "_first",
        "_histograms",
        "_last",
        "_served",
        "_size",
        "_started",
        "_streamed",
        "_usage",
    )

    def __init__(
        self, histograms: RequestHistograms, head: ResponseHead, *, asked_to_stream: bool, started: float,
        counted: Callable[[Usage], None],
    ) -> None:  # fmt: skip
        kind = head.media_type
        self._histograms = histograms
        self._started = started
        self._counted = counted
        self._served = _is_served(head)
        self._streamed = asked_to_stream or kind == _EVENTS
        self._usage = UsageReader(streamed=kind == _EVENTS) if _is_readable(head) and self._served else None
        self._size = 0
        self._first: float | None = None
        self._last = 0.0

    @property
    def changes_body(self) -> bool:
        return False

    def read(self, piece: Buffer, now: float) -> None:
        if not len(piece):
            return
        self._size += len(piece)
        if self._first is None:
            self._first = now
        elif self._streamed and self._served:
            observe(self._histograms, ITL, now - self._last)
        self._last = now
        if self._usage is not None:
            self._usage.feed(bytes(piece))

    def end(self, now: float) -> bytes:
        observe(self._histograms, RESPONSE_BYTES, self._size)
        if self._served and self._first is not None:
            usage = NO_USAGE if self._usage is None else self._usage.end()
            times = {"started": self._started, "first": self._first, "now": now}
            observe_usage(self._histograms, usage, streamed=self._streamed, **times)
            self._counted(usage)
        return b""
