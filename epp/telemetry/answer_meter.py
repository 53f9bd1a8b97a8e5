"""Measures one answer while it passes: its size, its times, and the tokens that it says were used."""

from collections.abc import Callable
from typing import Final

from epp.ext_proc.response_body import ResponseHead
from epp.request.body import Buffer
from epp.response.usage import NO_USAGE, Usage
from epp.response.usage_reader import UsageReader
from epp.telemetry.answer_tally import ITL, RESPONSE_BYTES, observe, observe_usage
from epp.telemetry.request_tally import RequestTally

_EVENTS: Final = "text/event-stream"


class AnswerMeter:
    """A ResponseBodyReader that changes nothing.

    Of an answer that is compressed, or neither JSON nor server-sent events, no tokens are known; of one without a 2xx
    status only the size counts. Nothing but ITL is counted of an answer that breaks off, as in the Go picker.
    `counted`: called at the end with what the answer said.
    """

    __slots__ = (
        "_counted",
        "_first",
        "_last",
        "_served",
        "_size",
        "_started",
        "_streamed",
        "_tally",
        "_usage",
    )

    def __init__(
        self, tally: RequestTally, head: ResponseHead, *, asked_to_stream: bool, started: float,
        counted: Callable[[Usage], None],
    ) -> None:  # fmt: skip
        kind = head.media_type
        readable = not head.encoded and (kind in ("", _EVENTS) or kind.endswith("json"))
        self._tally = tally
        self._started = started
        self._counted = counted
        self._served = head.status is not None and 200 <= head.status < 300
        self._streamed = asked_to_stream or kind == _EVENTS
        self._usage = UsageReader(streamed=kind == _EVENTS) if readable and self._served else None
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
            observe(self._tally, ITL, now - self._last)
        self._last = now
        if self._usage is not None:
            self._usage.feed(bytes(piece))

    def end(self, now: float) -> bytes:
        observe(self._tally, RESPONSE_BYTES, self._size)
        if self._served and self._first is not None:
            usage = NO_USAGE if self._usage is None else self._usage.end()
            times = {"started": self._started, "first": self._first, "now": now}
            observe_usage(self._tally, usage, streamed=self._streamed, **times)
            self._counted(usage)
        return b""
