"""A request body that is held until it is complete, within a bound."""

from epp.protocol import Rejection


class Body:
    """Pieces of one request body; more than `limit` bytes are a Rejection 413, and nothing of it stays held."""

    __slots__ = ("_limit", "_pieces", "_size")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._size = 0

    def expect(self, content_length: str | None) -> None:
        """Refuse at once what says that it will be too large; a length that is no number says nothing."""
        if content_length is not None and content_length.isascii() and content_length.isdigit():
            self._check(int(content_length))

    def add(self, piece: bytes) -> None:
        """Hold one more piece."""
        self._size += len(piece)
        self._check(self._size)
        self._pieces.append(piece)

    def whole(self) -> bytes:
        """All pieces so far, joined once."""
        if len(self._pieces) > 1:
            self._pieces = [b"".join(self._pieces)]
        return self._pieces[0] if self._pieces else b""

    def drop(self) -> None:
        """Hold nothing any more."""
        self._pieces = []

    def _check(self, size: int) -> None:
        if size > self._limit:
            self.drop()
            raise Rejection(413, "request_too_large", f"the request body is larger than {self._limit} bytes")
