"""Tells what is counted for a request that its answer has begun: the prompt is computed. Pure."""

from collections.abc import Sequence
from typing import Final

from epp.ext_proc.response_body import ResponseBodyReader, ResponseHead
from epp.request.body import Buffer
from epp.request.inference_request import RequestCount

_EVENTS: Final = "text/event-stream"


def open_first_piece(counts: Sequence[RequestCount], head: ResponseHead) -> list[ResponseBodyReader]:
    """A reader, if something is counted and the answer is streamed: the first piece of any other may be its last."""
    return [FirstPieceReader(counts)] if counts and head.media_type == _EVENTS else []


class FirstPieceReader:
    """A `ResponseBodyReader` that changes nothing."""

    __slots__ = ("_counts",)

    def __init__(self, counts: Sequence[RequestCount]) -> None:
        self._counts = counts

    @property
    def changes_body(self) -> bool:
        return False

    def read(self, piece: Buffer, now: float) -> None:
        counts, self._counts = self._counts, ()
        for count in counts:
            count.answered()

    def end(self, now: float) -> bytes:
        return b""
