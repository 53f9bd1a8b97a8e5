"""A request body that is held until it is complete, within a bound of its own and one that all bodies share."""

from collections.abc import Callable
from typing import Final, TypeAlias

from epp.request.rejection import Rejection

Buffer: TypeAlias = bytes | memoryview
SMALL: Final = 4096
"""Bytes of a piece: to copy fewer costs less than to keep them apart."""
LARGEST: Final = 65_536
"""Bytes of a piece, as Envoy sends them: the rest of a larger one that waits to be sent would hold too much."""
TOO_MANY: Final = "rejected-too-many-bytes"
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

    def take(self, size: int, body: "Body | None" = None) -> None:
        """Raises Rejection 503, and takes nothing, when that is more than can be had."""
        if self.held + size > self._limit:
            self._make_room(size, body)
            if self.held + size > self._limit:
                raise _too_many()
        self.held += size

    def begin(self, body: "Body") -> None:
        """It is unfinished, and has grown just now."""
        self._unfinished.pop(body, None)
        self._unfinished[body] = None

    def end(self, body: "Body") -> None:
        """It is whole, or held no more."""
        self._unfinished.pop(body, None)

    def expire(self, begun_before: float, seconds: float) -> None:
        """Refuse bodies that began by then and are unfinished; `seconds` is the time that they had."""
        for body in list(self._unfinished):
            if body.begun < begun_before:
                message = f"the request body was not complete within {seconds:g} s"
                body.refuse(Rejection(408, "request_timeout", message))

    def _make_room(self, size: int, growing: "Body | None") -> None:
        for body in list(self._unfinished):
            if self.held + size <= self._limit:
                return
            if body is not growing and body.size:
                body.refuse(_too_many())

    def release(self, size: int) -> None:
        """What was taken is held no more."""
        self.held -= size


class Body:
    """Pieces of one request body; more than `limit` bytes are a Rejection 413, and nothing of it stays held."""

    __slots__ = ("_budget", "_limit", "_pieces", "_refused", "begun", "size")

    def __init__(self, limit: int, budget: MemoryBudget) -> None:
        self._limit = limit
        self._budget = budget
        self._pieces: list[Buffer] = []
        self._refused: Callable[[Rejection], None] | None = None
        self.size = 0
        """Bytes that count in the budget."""
        self.begun = 0.0

    def begin(self, now: float, refused: Callable[[Rejection], None]) -> None:
        """From now on, until it is whole, others may need its room or its time may run out: then `refused` is told."""
        self.begun = now
        self._refused = refused
        self._budget.begin(self)

    def refuse(self, rejection: Rejection) -> None:
        """Let go of all of it and tell whose it is."""
        refused = self._refused
        self.drop()
        if refused is not None:
            refused(rejection)

    def end(self) -> None:
        """Nothing more comes: what is held stays until `drop`."""
        if self._refused is not None:
            self._refused = None
            self._budget.end(self)

    def expect(self, content_length: str | None) -> None:
        """Refuse at once what says that it will be too large; a length that is no number says nothing."""
        if content_length is None or not (content_length.isascii() and content_length.isdecimal()):
            return
        digits = content_length.lstrip("0")
        if len(digits) > _DIGITS or int(digits or "0") > self._limit:
            raise self._too_large()

    def add(self, piece: Buffer) -> None:
        """Hold one more piece."""
        if not piece:
            return  # the data plane's way to say that it was the last one
        if self.size + len(piece) > self._limit:
            self.drop()
            raise self._too_large()
        if self._refused is not None:
            self._budget.begin(self)
        self._budget.take(len(piece), self)
        self.size += len(piece)
        self._pieces.append(piece)

    def whole(self) -> Buffer:
        """All pieces so far, joined; held is the whole alone, unless the pieces are what goes back as it came."""
        pieces = self._pieces
        if len(pieces) == 1:
            return pieces[0]
        whole = b"".join(pieces)
        if self.size < SMALL * len(pieces) or max(map(len, pieces), default=0) > LARGEST:
            self._pieces = [whole] if whole else []
        return whole

    def join(self, whole: Buffer) -> None:
        """Hold what `whole` gave in place of the pieces."""
        self._pieces = [whole]

    def forget(self) -> list[Buffer]:
        """The pieces, which are held by somebody else now: they count until `drop`."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def drop(self) -> None:
        """Nothing is held any more, by nobody."""
        self.end()
        self._pieces = []
        self._budget.release(self.size)
        self.size = 0

    def _too_large(self) -> Rejection:
        return Rejection(413, "request_too_large", f"the request body is larger than {self._limit} bytes")


def _too_many() -> Rejection:
    message = "the picker holds as many bytes of unfinished request bodies as it may"
    return Rejection(503, "too_many_bytes", message, reason=TOO_MANY, retry_after=_RETRY_AFTER)


_DIGITS: Final = 18
"""A longer length is larger than anything that fits anywhere."""
