"""Passes the body of one response through its readers, and answers its pieces as the data plane's body mode wants. Pure."""

import logging
from collections.abc import Callable, Sequence
from typing import ClassVar, Final

from epp.ext_proc import answers, protocol
from epp.ext_proc.answers import Answer
from epp.ext_proc.exchange_settings import ExchangeSettings
from epp.ext_proc.held_request import DUPLEX
from epp.ext_proc.model_restorer import open_restorer
from epp.ext_proc.response_body import ResponseBodyReader, ResponseHead, ResponseReaderOpener
from epp.request.body import Buffer
from epp.request.inference_request import RequestCount
from epp.scheduling.pick import Pick
from epp.wire.messages.ext_proc_pb2 import HeaderMap, ProcessingMode

log = logging.getLogger(__name__)

UNSTATED: Final[int] = -1
"""No response mode was stated: no body is expected; if one comes, it is sent back as in FULL_DUPLEX_STREAMED."""
_FULL_DUPLEX: Final[int] = ProcessingMode.FULL_DUPLEX_STREAMED
_BUFFERED: Final[int] = ProcessingMode.BUFFERED
_SENT_ANYWAY: Final = (*DUPLEX, ProcessingMode.BUFFERED)
"""The response modes in which the picker cannot do without the body: STREAMED ends with the stream."""
_READABLE: Final = (*DUPLEX, ProcessingMode.STREAMED, ProcessingMode.BUFFERED)
"""The response modes in which a whole body comes: BUFFERED_PARTIAL may send a part only."""
_EVENTS: Final = "text/event-stream"


class ResponsePhase:
    """One response and the readers of its body, in the order in which its pieces pass them; `mode`: `response_body_mode`.

    `awaits_body`: the stream stays open for the body, because the data plane expects it back or a reader needs it.
    """

    __slots__ = (
        "_duplex",
        "_has_length",
        "_is_read",
        "_mode",
        "_readers",
        "_stated",
        "awaits_body",
        "follows_body",
    )

    def __init__(self, mode: int) -> None:
        self._stated = mode
        self._mode = _FULL_DUPLEX if mode == UNSTATED else mode
        self._duplex = self._mode in DUPLEX
        self._readers: list[ResponseBodyReader] = []
        self._is_read = False
        self._has_length = False
        self.awaits_body = mode in DUPLEX
        self.follows_body = self._duplex
        """Whether pieces of the body tell how far the response has come."""

    def open_readers(
        self,
        settings: ExchangeSettings,
        pick: Pick,
        headers: HeaderMap,
        times: tuple[float, float],
        given_up: Callable[[], None],
    ) -> None:
        """Open the readers that want this body. `times`: when the request's headers came, and now.

        `given_up`: called if the answer takes too much work to give its client its model's name.
        """
        openers = settings.response_readers
        passing = settings.passing_readers if self._stated in _SENT_ANYWAY else ()
        request = pick.request
        needed = bool(openers or request.counts) or request.rewritten_from is not None
        if not needed and not passing:
            return  # the common case
        head = protocol.read_response_head(headers)
        readers = _open((*passing, *openers), pick, head, *times, given_up)
        is_readable = self._mode in _READABLE
        # the first piece of an answer that is not streamed may be its last
        if is_readable and request.counts and head.media_type == _EVENTS:
            readers.append(_FirstPieceReader(request.counts))
        if readers and not is_readable:
            settings.unread_bodies.missing()
        elif readers:
            self._readers = readers
            self._is_read = self.follows_body = True
            self._has_length = "content-length" in head.headers
            self.awaits_body |= needed and self._stated in _READABLE

    def answer_headers(self) -> bytes:
        """The answer to the response headers: without a Content-Length if the body may become shorter or longer.

        Envoy removes it by itself in the streamed modes, other data planes may not; BUFFERED has it corrected with the body.
        """
        changes = any(reader.changes_body for reader in self._readers)
        if changes and self._has_length and self._mode != _BUFFERED:
            return answers.without_length("response_headers")
        return answers.unchanged("response_headers")

    def answer_piece(self, piece: Buffer, end_of_stream: bool, now: float) -> list[Answer]:
        """The answers to a piece of the body."""
        body = self._read(piece, now) if self._is_read else None
        if end_of_stream or self._mode == _BUFFERED:
            tail = self._end(now)
            if tail:
                body = b"".join((piece if body is None else body, tail))
        if not self._duplex:
            return [
                answers.replaced(
                    "response_body", body, with_length=self._mode == _BUFFERED and self._has_length
                )
            ]
        passed = piece if body is None else body
        if not passed and not end_of_stream and self._is_read:
            return []  # held back; in this mode a piece needs no answer of its own
        return answers.streamed("response_body", (passed,), end_of_stream=end_of_stream)

    def answer_trailers(self, now: float) -> list[Answer]:
        """The answers to trailers, which end the body; only in a duplex mode may more of the body come before them."""
        tail = self._end(now)
        rest: list[Answer] = []
        if tail and self._duplex:
            rest = answers.streamed("response_body", (tail,), end_of_stream=False)
        return [*rest, answers.unchanged("response_trailers")]

    def _read(self, piece: Buffer, now: float) -> Buffer | None:
        """The piece as the last reader leaves it, None: unchanged."""
        changed: Buffer | None = None
        for reader in self._readers:
            try:
                read = reader.read(piece, now)
            except Exception as error:  # noqa: BLE001  # an answer that has begun is not cut for a reader's sake
                self._drop(reader, error)
                continue
            if read is not None:
                piece = changed = read
        return changed

    def _end(self, now: float) -> bytes:
        """Returns the bytes that the readers held back, in order; they get nothing more."""
        tail = b""
        for reader in self._readers:
            try:
                read = reader.read(tail, now) if tail else None
                tail = b"".join((tail if read is None else read, reader.end(now)))
            except Exception as error:  # noqa: BLE001  # as above
                self._drop(reader, error)
        self._readers = []
        return tail

    def _drop(self, reader: ResponseBodyReader, error: Exception) -> None:
        log.error("%s failed to read a response body: %s", type(reader).__name__, type(error).__name__)
        self._readers = [kept for kept in self._readers if kept is not reader]


def _open(
    openers: Sequence[ResponseReaderOpener],
    pick: Pick,
    head: ResponseHead,
    started: float,
    now: float,
    given_up: Callable[[], None],
) -> list[ResponseBodyReader]:
    """The reader that gives the client its model's name comes last: the others read the worker's."""
    readers: list[ResponseBodyReader] = []
    for open_reader in openers:
        try:
            reader = open_reader(pick, head, started, now)
        except Exception as error:  # noqa: BLE001  # a request is not failed for a reader's sake
            log.error("a reader of response bodies failed to open: %s", type(error).__name__)
            continue
        if reader is not None:
            readers.append(reader)
    restorer = open_restorer(pick, head, given_up)
    return readers if restorer is None else [*readers, restorer]


class _FirstPieceReader:
    """Tells what is counted for a request that its answer has begun: the prompt is computed."""

    changes_body: ClassVar[bool] = False
    __slots__ = ("_counts",)

    def __init__(self, counts: Sequence[RequestCount]) -> None:
        self._counts = counts

    def read(self, piece: Buffer, now: float) -> None:
        counts, self._counts = self._counts, ()
        for count in counts:
            count.answered()

    def end(self, now: float) -> bytes:
        return b""
