"""Holds request bodies until they are complete, within a limit for each and one for all together."""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from epp.request.rejection import RETRY_AFTER, Rejection

Buffer: TypeAlias = bytes | memoryview
SMALL_PIECE: Final = 4096
"""Bytes; smaller pieces are joined: a copy costs less than a piece of its own."""
LARGE_PIECE: Final = 65_536
"""Bytes; larger pieces are copied: a slice that waits to be sent would keep the whole piece in memory."""
TOO_MANY_BYTES: Final = "rejected-too-many-bytes"


def header_bytes(headers: Mapping[str, str]) -> int:
    """The size of headers, as in HTTP/2: name, value and 32 bytes for each (RFC 9113 section 6.5.2)."""
    return 32 * len(headers) + sum(map(len, headers)) + sum(map(len, headers.values()))


class MemoryBudget:
    """The bytes that all unfinished bodies and messages of a picker may hold together.

    When it is full, the bodies that have been silent for longest are refused, not the new one: otherwise clients that
    stall on purpose would lock out all others (the Slowloris attack).
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._unfinished: dict[Body, None] = {}
        """The body that grew last comes last."""
        self.held = 0

    def acquire(self, size: int, body: "Body | None" = None) -> None:
        """Take bytes of the budget, for `body` if given. Raises `Rejection` 503, and takes nothing, if they cannot be had."""
        if self.held + size > self._limit:
            self._evict(size, body)
            if self.held + size > self._limit:
                raise _too_many_bytes()
        self.held += size

    def begin(self, body: "Body") -> None:
        """The body is unfinished, and has just grown."""
        self._unfinished.pop(body, None)
        self._unfinished[body] = None

    def end(self, body: "Body") -> None:
        """The body is complete, or no longer held."""
        self._unfinished.pop(body, None)

    def expire(self, before: float, seconds: float) -> None:
        """Refuse unfinished bodies that began before that time; `seconds`: the time that they had, for the answer."""
        for body in list(self._unfinished):
            if body.began_at < before:
                message = f"the request body was not complete within {seconds:g} s"
                body.refuse(Rejection(408, "request_timeout", message))

    def _evict(self, size: int, keep: "Body | None") -> None:
        for body in list(self._unfinished):
            if self.held + size <= self._limit:
                return
            if body is not keep and body.size:  # the first one has been silent for longest
                body.refuse(_too_many_bytes())

    def release(self, size: int) -> None:
        """Let other bodies have so many bytes that one had."""
        self.held -= size


class Body:
    """The pieces of one request body. More than `limit` bytes raise `Rejection` 413 and release all of it."""

    __slots__ = ("_budget", "_limit", "_on_refused", "_pieces", "began_at", "size")

    def __init__(self, limit: int, budget: MemoryBudget) -> None:
        self._limit = limit
        self._budget = budget
        self._pieces: list[Buffer] = []
        self._on_refused: Callable[[Rejection], None] | None = None
        self.size = 0
        """The bytes that count in the budget."""
        self.began_at = 0.0

    def begin(self, now: float, on_refused: Callable[[Rejection], None]) -> None:
        """Start the body: until `end` the budget may refuse it, for its bytes or its time, and calls `on_refused`."""
        self.began_at = now
        self._on_refused = on_refused
        self._budget.begin(self)

    def refuse(self, rejection: Rejection) -> None:
        """Release all of it and call `on_refused`."""
        on_refused = self._on_refused
        self.discard()
        if on_refused is not None:
            on_refused(rejection)

    def end(self) -> None:
        """The body is complete; it stays held until `discard`."""
        if self._on_refused is not None:
            self._on_refused = None
            self._budget.end(self)

    def check_length(self, content_length: str | None) -> None:
        """Raise `Rejection` 413 at once if the Content-Length is too large; one that is not a number is ignored."""
        if content_length is None or not (content_length.isascii() and content_length.isdecimal()):
            return
        digits = content_length.lstrip("0")  # leading zeros are legal (RFC 9110 section 8.6)
        if len(digits) > _MAX_DIGITS or int(digits or "0") > self._limit:
            raise self._too_large()

    def add(self, piece: Buffer) -> None:
        """Hold one more piece; raises `Rejection`."""
        if not piece:
            return  # Envoy sends an empty last piece if the end of a body comes after its bytes
        if self.size + len(piece) > self._limit:
            self.discard()
            raise self._too_large()
        if self._on_refused is not None:
            self._budget.begin(self)
        self._budget.acquire(len(piece), self)
        self.size += len(piece)
        self._pieces.append(piece)

    def charge(self, size: int) -> None:
        """Count so many bytes with it until `discard`; raises `Rejection`."""
        self._budget.acquire(size, self)
        self.size += size

    def joined(self) -> Buffer:
        """All pieces, joined. If they are small or very large, the joined bytes replace them; others go back as they came."""
        pieces = self._pieces
        if len(pieces) == 1:
            return pieces[0]
        whole = b"".join(pieces)
        if self.size < SMALL_PIECE * len(pieces) or max(map(len, pieces), default=0) > LARGE_PIECE:
            self._pieces = [whole] if whole else []
        return whole

    def replace(self, pieces: list[Buffer]) -> None:
        """Hold these in place of the pieces: the result of `joined`, or nearly the same; counted as before."""
        self._pieces = pieces

    def detach(self) -> list[Buffer]:
        """Hand over the pieces; their bytes count until `discard`."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def discard(self) -> None:
        """Release the pieces and their bytes."""
        self.end()
        self._pieces = []
        self._budget.release(self.size)
        self.size = 0

    def _too_large(self) -> Rejection:
        return Rejection(413, "request_too_large", f"the request body is larger than {self._limit} bytes")


def _too_many_bytes() -> Rejection:
    message = "the picker's memory for unfinished request bodies is full"
    return Rejection(503, "too_many_bytes", message, reason=TOO_MANY_BYTES, retry_after=RETRY_AFTER)


_MAX_DIGITS: Final = 18
"""Digits of a Content-Length; a longer one is over any limit, and `int` of many digits is slow."""
