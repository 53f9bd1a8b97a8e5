"""A byte stream cut into lines, however the network cut it."""

from typing import Final

LINE_LIMIT: Final = 16 * 1024 * 1024


class LineTooLongError(ValueError):
    """More bytes than the limit and still no end of the line."""


class LineSplitter:
    """Splits at b"\\n" and nothing else: `str.splitlines` would also split at U+0085, which JSON text may hold.

    What follows the last line's end is never a line: a stream that breaks off leaves half of one.
    """

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self._limit = limit
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes, without their end, empty ones left out. LineTooLongError."""
        lines: list[bytes] = []
        searched = len(self._rest)
        self._rest += chunk
        start = 0
        while (end := self._rest.find(b"\n", max(start, searched))) >= 0:
            line = bytes(self._rest[start:end])
            start = end + 1
            self._check(len(line))
            if line and not line.isspace():
                lines.append(line)
        del self._rest[:start]
        self._check(len(self._rest))
        return lines

    def _check(self, length: int) -> None:
        if length > self._limit:
            raise LineTooLongError(f"a line of more than {self._limit} bytes")
