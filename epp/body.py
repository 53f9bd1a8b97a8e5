"""A request body that is held until it is complete, within a bound of its own and one that all bodies share."""

from typing import Final, TypeAlias

from epp.protocol import Rejection

Buffer: TypeAlias = bytes | memoryview
SMALL: Final = 4096
"""Bytes of a piece: to copy fewer costs less than to keep them apart."""
LARGEST: Final = 65_536
"""Bytes of a piece, as Envoy sends them: the rest of a larger one that waits to be sent would hold too much."""
TOO_MANY: Final = "rejected-too-many-bytes"
_RETRY_AFTER: Final = 1.0


class Budget:
    """The bytes that all unfinished bodies of a picker may hold together."""

    __slots__ = ("_limit", "held")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held = 0

    def take(self, size: int) -> None:
        """Raises Rejection 503, and takes nothing, when that is more than is left."""
        if self.held + size > self._limit:
            message = "the picker holds as many bytes of unfinished request bodies as it may"
            raise Rejection(503, "too_many_bytes", message, reason=TOO_MANY, retry_after=_RETRY_AFTER)
        self.held += size

    def give_back(self, size: int) -> None:
        """What was taken is held no more."""
        self.held -= size


class Body:
    """Pieces of one request body; more than `limit` bytes are a Rejection 413, and nothing of it stays held."""

    __slots__ = ("_budget", "_limit", "_pieces", "_size")

    def __init__(self, limit: int, budget: Budget) -> None:
        self._limit = limit
        self._budget = budget
        self._pieces: list[Buffer] = []
        self._size = 0

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
        if self._size + len(piece) > self._limit:
            self.drop()
            raise self._too_large()
        self._budget.take(len(piece))
        self._size += len(piece)
        self._pieces.append(piece)

    def whole(self) -> Buffer:
        """All pieces so far, joined; held is the whole alone, unless the pieces are what goes back as it came."""
        pieces = self._pieces
        if len(pieces) == 1:
            return pieces[0]
        whole = b"".join(pieces)
        if self._size < SMALL * len(pieces) or max(map(len, pieces), default=0) > LARGEST:
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
        self._pieces = []
        self._budget.give_back(self._size)
        self._size = 0

    def _too_large(self) -> Rejection:
        return Rejection(413, "request_too_large", f"the request body is larger than {self._limit} bytes")


_DIGITS: Final = 18
"""A longer length is larger than anything that fits anywhere."""
