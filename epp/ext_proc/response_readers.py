"""Passes the body of one response through its readers, and answers its pieces as the data plane's body mode wants. Pure."""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from epp.ext_proc import answers
from epp.ext_proc.answers import Answer
from epp.ext_proc.model_restorer import open_restorer
from epp.ext_proc.response_body import ResponseBodyReader, ResponseHead, ResponseReaderOpener
from epp.request.body import Buffer
from epp.scheduling.pick import Pick
from epp.wire.messages.ext_proc_pb2 import ProcessingMode

log = logging.getLogger(__name__)

_DUPLEX: Final = (ProcessingMode.FULL_DUPLEX_STREAMED, ProcessingMode.GRPC)
_BUFFERED: Final[int] = ProcessingMode.BUFFERED


def open_readers(
    openers: Sequence[ResponseReaderOpener],
    pick: Pick,
    head: ResponseHead,
    started: float,
    now: float,
    given_up: Callable[[], None],
) -> list[ResponseBodyReader]:
    """The readers that want this body. What gives the client its model's name comes last: the others read the worker's.

    `given_up`: called if the answer takes too much work to give its client that name.
    """
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


class ResponseReaders:
    """The readers of one response, in the order in which its pieces pass them; `mode`: its `response_body_mode`.

    `needed`: the stream stays open until they have read it.
    """

    __slots__ = ("_has_length", "_mode", "_readers", "needed")

    def __init__(
        self, readers: Sequence[ResponseBodyReader], mode: int, head: ResponseHead, *, needed: bool
    ) -> None:
        self.needed = needed
        self._readers = list(readers)
        self._mode = mode
        self._has_length = "content-length" in head.headers

    def answer_headers(self) -> bytes:
        """The answer to the response headers: without a Content-Length if the body may become shorter or longer.

        Envoy removes it by itself in the streamed modes, other data planes may not; BUFFERED has it corrected with the body.
        """
        changes = any(reader.changes_body for reader in self._readers)
        if changes and self._has_length and self._mode != _BUFFERED:
            return answers.without_length("response_headers")
        return answers.unchanged("response_headers")

    def answer_piece(self, piece: Buffer, *, end_of_stream: bool, now: float) -> list[Answer]:
        """The answers to a piece of the body."""
        body = self._read(piece, now)
        if end_of_stream or self._mode == _BUFFERED:
            tail = self._end(now)
            if tail:
                body = b"".join((piece if body is None else body, tail))
        if self._mode not in _DUPLEX:
            return [answers.replaced("response_body", body, with_length=self._sets_length)]
        passed = piece if body is None else body
        if not passed and not end_of_stream:
            return []  # held back; in this mode a piece needs no answer of its own
        return answers.streamed("response_body", (passed,), end_of_stream=end_of_stream)

    def answer_trailers(self, now: float) -> list[Answer]:
        """The answers to trailers, which end the body; only in a duplex mode may more of the body come before them."""
        tail = self._end(now)
        rest: list[Answer] = []
        if tail and self._mode in _DUPLEX:
            rest = answers.streamed("response_body", (tail,), end_of_stream=False)
        return [*rest, answers.unchanged("response_trailers")]

    @property
    def _sets_length(self) -> bool:
        return self._mode == _BUFFERED and self._has_length

    def _read(self, piece: Buffer, now: float) -> Buffer | None:
        """The piece as the last reader leaves it, None: unchanged."""
        changed: Buffer | None = None
        for reader in tuple(self._readers):
            try:
                read = reader.read(piece, now)
            except Exception as error:  # noqa: BLE001  # an answer that has begun is not cut for a reader's sake
                self._drop(reader, error)
                continue
            if read is not None:
                piece = changed = read
        return changed

    def _end(self, now: float) -> bytes:
        """What the readers held back, in order; they get nothing more."""
        tail = b""
        for reader in tuple(self._readers):
            try:
                read = reader.read(tail, now) if tail else None
                tail = b"".join((tail if read is None else read, reader.end(now)))
            except Exception as error:  # noqa: BLE001  # as above
                self._drop(reader, error)
        self._readers.clear()
        return tail

    def _drop(self, reader: ResponseBodyReader, error: Exception) -> None:
        log.error("%s failed to read a response body: %s", type(reader).__name__, type(error).__name__)
        self._readers.remove(reader)
