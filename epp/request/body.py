"""A request body that is held until it is complete, within a bound of its own and one that all bodies share."""

from collections.abc import Callable
from typing import Final, TypeAlias

from epp.request.rejection import Rejection

Buffer: TypeAlias = bytes | memoryview
SMALL_PIECE: Final = 4096
"""Bytes of a piece: to copy fewer costs less than to keep them apart."""
LARGE_PIECE: Final = 65_536
"""Bytes of a piece, as Envoy sends them: the rest of a larger one that waits to be sent would hold too much."""
TOO_MANY_BYTES: Final = "rejected-too-many-bytes"
_RETRY_AFTER: Final = 1.0


class MemoryBudget:
    """The bytes that all unfinished bodies of a picker may hold together.

    Where there is no room, the bodies that have said nothing for longest are refused, not the one that comes: so that
    clients who stall hold nobody else's place.
    """

    __slots__ = ("_limit", "_unfinished", "held")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._unfinished: dict[Body, None] = {}
        """The one that grew last at the end."""
        self.held = 0

    def acquire(self, size: int, body: "Body | None" = None) -> None:
        """Raises Rejection 503, and takes nothing, when that is more than can be had."""
        if self.held + size > self._limit:
            self._evict(size, body)
            if self.held + size > self._limit:
                raise _too_many_bytes()
        self.held += size

    def begin(self, body: "Body") -> None:
        """It is unfinished, and has grown just now."""
        self._unfinished.pop(body, None)
        self._unfinished[body] = None

    def end(self, body: "Body") -> None:
        """It is whole, or held no more."""
        self._unfinished.pop(body, None)

    def expire(self, before: float, seconds: float) -> None:
        """Refuse bodies that began by then and are unfinished; `seconds` is the time that they had."""
        for body in list(self._unfinished):
            if body.began_at < before:
                message = f"the request body was not complete within {seconds:g} s"
                body.refuse(Rejection(408, "request_timeout", message))

    def _evict(self, size: int, keep: "Body | None") -> None:
        for body in list(self._unfinished):
            if self.held + size <= self._limit:
                return
            if body is not keep and body.size:
                body.refuse(_too_many_bytes())

    def release(self, size: int) -> None:
        """What was taken is held no more."""
        self.held -= size


class Body:
    """Pieces of one request body; more than `limit` bytes are a Rejection 413, and nothing of it stays held."""

    __slots__ = ("_budget", "_limit", "_on_refused", "_pieces", "began_at", "size")

    def __init__(self, limit: int, budget: MemoryBudget) -> None:
        self._limit = limit
        self._budget = budget
        self._pieces: list[Buffer] = []
        self._on_refused: Callable[[Rejection], None] | None = None
        self.size = 0
        """Bytes that count in the budget."""
        self.began_at = 0.0

    def begin(self, now: float, on_refused: Callable[[Rejection], None]) -> None:
        """From now on, until it is whole, others may need its room or its time may run out: then `on_refused` is told."""
        self.began_at = now
        self._on_refused = on_refused
        self._budget.begin(self)

    def refuse(self, rejection: Rejection) -> None:
        """Let go of all of it and tell whose it is."""
        on_refused = self._on_refused
        self.discard()
        if on_refused is not None:
            on_refused(rejection)

    def end(self) -> None:
        """Nothing more comes: what is held stays until `discard`."""
        if self._on_refused is not None:
            self._on_refused = None
            self._budget.end(self)

    def check_length(self, content_length: str | None) -> None:
        """Refuse at once what says that it will be too large; a length that is no number says nothing."""
        if content_length is None or not (content_length.isascii() and content_length.isdecimal()):
            return
        digits = content_length.lstrip("0")
        if len(digits) > _MAX_DIGITS or int(digits or "0") > self._limit:
            raise self._too_large()

    def add(self, piece: Buffer) -> None:
        """Hold one more piece."""
        if not piece:
            return  # the data plane's way to say that it was the last one
        if self.size + len(piece) > self._limit:
            self.discard()
            raise self._too_large()
        if self._on_refused is not None:
            self._budget.begin(self)
        self._budget.acquire(len(piece), self)
        self.size += len(piece)
        self._pieces.append(piece)

    def joined(self) -> Buffer:
        """All pieces so far, joined; held is the whole alone, unless the pieces are what goes back as it came."""
        pieces = self._pieces
        if len(pieces) == 1:
            return pieces[0]
        whole = b"".join(pieces)
        if self.size < SMALL_PIECE * len(pieces) or max(map(len, pieces), default=0) > LARGE_PIECE:
            self._pieces = [whole] if whole else []
        return whole

    def replace(self, whole: Buffer) -> None:
        """Hold what `joined` gave in place of the pieces."""
        self._pieces = [whole]

    def detach(self) -> list[Buffer]:
        """The pieces, which are held by somebody else now: they count until `discard`."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def discard(self) -> None:
        """Nothing is held any more, by nobody."""
        self.end()
        self._pieces = []
        self._budget.release(self.size)
        self.size = 0

    def _too_large(self) -> Rejection:
        return Rejection(413, "request_too_large", f"the request body is larger than {self._limit} bytes")


def _too_many_bytes() -> Rejection:
    message = "the picker holds as many bytes of unfinished request bodies as it may"
    return Rejection(503, "too_many_bytes", message, reason=TOO_MANY_BYTES, retry_after=_RETRY_AFTER)


_MAX_DIGITS: Final = 18
"""A longer length is larger than anything that fits anywhere."""
