"""One HTTP/1.1 answer, read as its bytes come (RFC 9112). Pure."""

import re
from dataclasses import dataclass
from typing import Final

_HEAD: Final = 64 * 1024
"""Bytes that the status line and the header fields may take, or the fields after the last chunk."""
_CHUNK_LINE: Final = 4096
"""Bytes that a chunk's size and its extensions may take."""
CHUNKS: Final = 16 * 1024
"""Chunks that a body may come in, where nothing else is said: to read a mebibyte byte by byte takes seconds."""
_STATUS: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: [^\r\n]*)?(?=\r\n)")
_FIELD: Final = re.compile(
    rb"\r\n(connection|content-encoding|content-length|transfer-encoding):([^\r\n]*)(?=\r\n)"
)
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")
_CHUNK_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")
_FIELD_LINES: Final = re.compile(rb"(?:\r\n[!#$%&'*+.^_`|~0-9A-Za-z-]++:[^\r\n]*+)*+\r\n")
_BODILESS: Final = (204, 304)


class AnswerError(Exception):
    """What came is not an answer that can be read; the text says why."""


class AnswerCutError(AnswerError):
    """The connection ended before an answer was whole; `begun`: after a part of it had come."""

    def __init__(self, text: str, *, begun: bool = False) -> None:
        super().__init__(text)
        self.begun = begun


class AnswerTooLargeError(AnswerError):
    """Its body has more bytes than were to be read."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A whole answer. `head`: its header fields as they came. `reusable`: the connection may be asked again."""

    status: int
    head: bytes
    body: bytearray
    reusable: bool

    def fields(self) -> "HeaderFields":
        return HeaderFields(self.head)


class HeaderFields(dict[str, str]):
    """The header fields of one answer, asked for in any case (RFC 9110 §5.1); of several of one name, all of them."""

    def __init__(self, head: bytes) -> None:
        values: dict[str, list[str]] = {}
        for line in head.decode("utf-8", "surrogateescape").split("\r\n"):
            name, colon, value = line.partition(":")
            if colon:
                values.setdefault(name.lower(), []).append(value.strip(" \t"))
        super().__init__((name, ", ".join(found)) for name, found in values.items())

    def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override]  # of text only
        return super().get(name.lower(), default)


class AnswerReader:
    """Feed it what comes; it gives the answer once that is whole.

    `limit` and `chunks`: bytes that the body may have, and pieces that it may come in. `encoded`: a Content-Encoding is
    left as it is; otherwise it is refused. `strict`: what a recipient may repair is refused too: lines that are no header
    field (RFC 9112 §5.1), a length beside chunks (§6.3).
    """

    __slots__ = (
        "_body", "_buffer", "_chunked", "_chunks", "_chunks_left", "_encoded", "_head", "_keeps", "_length", "_limit",
        "_status", "_strict",
    )  # fmt: skip

    def __init__(
        self, limit: int, *, chunks: int = CHUNKS, encoded: bool = False, strict: bool = False
    ) -> None:
        self._limit = limit
        self._encoded = encoded
        self._strict = strict
        self._buffer = bytearray()
        self._head = b""
        self._body = bytearray()
        self._status = 0
        self._keeps = True
        self._chunked = False
        self._chunks = chunks
        self._chunks_left = chunks
        self._length: int | None = None

    def feed(self, data: bytes | memoryview) -> HttpAnswer | None:
        """The answer if these bytes complete it; raises AnswerError."""
        self._buffer += data
        while not self._status:
            if not self._read_head():
                return None
        if self._chunked:
            return self._read_chunks()
        if len(self._buffer) > self._limit and self._length is None:
            raise self._too_much()
        if self._length is None or len(self._buffer) < self._length:
            return None
        reusable = self._keeps and len(self._buffer) == self._length
        del self._buffer[self._length :]
        return HttpAnswer(self._status, self._head, self._buffer, reusable)

    def end(self) -> HttpAnswer:
        """The connection is closed: that ends a body that did not say how long it is; raises AnswerError."""
        if self._status and not self._chunked and self._length is None:
            return HttpAnswer(self._status, self._head, self._buffer, reusable=False)
        begun = bool(self._status or self._buffer)  # not by one that only said "go on" (1xx)
        raise AnswerCutError("the connection was closed before the answer was whole", begun=begun)

    def _read_head(self) -> bool:
        """Whether there is a whole head, taken off the buffer; one that only says "go on" (1xx) is no answer yet."""
        end = self._buffer.find(b"\r\n\r\n")
        if end > _HEAD or (end < 0 and len(self._buffer) > _HEAD):
            raise AnswerError(f"its header fields take more than {_HEAD} bytes")
        if end < 0:
            return False
        head = bytes(self._buffer[: end + 2])
        del self._buffer[: end + 4]
        found = _STATUS.match(head)
        if found is None:
            raise AnswerError("what answers there does not speak HTTP/1.1")
        status = int(found[2])
        if status >= 200:
            self._status = status
            self._head = head[found.end() :]
            if self._strict and _FIELD_LINES.fullmatch(self._head) is None:
                raise AnswerError("a line of its head is no header field")
            self._read_fields(self._head.lower(), newer=found[1] == b"1")
        elif status == 101:
            raise AnswerError("status 101: it switches to a protocol that was not asked for")
        return True

    def _read_fields(self, head: bytes, *, newer: bool) -> None:
        """`head` in lower case, from the end of the status line on."""
        fields: dict[bytes, bytes] = {}
        for name, value in _FIELD.findall(head):
            fields[name] = fields[name] + b"," + value if name in fields else value
        connection = [option.strip() for option in fields.get(b"connection", b"").split(b",")]
        self._keeps = b"close" not in connection and (newer or b"keep-alive" in connection)
        encoding = fields.get(b"content-encoding", b"identity").strip()
        if encoding not in (b"identity", b"") and not self._encoded:
            raise AnswerError(
                f"it is encoded ({encoding.decode('latin-1')[:20]}), though that was not asked for"
            )
        self._read_length(fields)

    def _read_length(self, fields: dict[bytes, bytes]) -> None:
        coding = fields.get(b"transfer-encoding")
        coding = coding if coding is None else coding.strip()
        if coding not in (None, b"chunked"):
            raise AnswerError("its Transfer-Encoding is not chunked")
        self._chunked = coding is not None
        if self._chunked and self._strict and b"content-length" in fields:
            raise AnswerError("it says both how long it is and that it comes in chunks")
        lengths = {length.strip() for length in fields.get(b"content-length", b"").split(b",")}
        if self._status in _BODILESS:
            self._chunked, self._length = False, 0
        elif not self._chunked and b"content-length" in fields:
            length = lengths.pop()
            length = length.lstrip(b"0") or length[-1:]  # of thousands of zeros `int` makes no number
            if lengths or not _LENGTH.fullmatch(length):
                raise AnswerError("its Content-Length is not a number")
            self._length = int(length)
            if self._length > self._limit:
                raise self._too_much()

    def _read_chunks(self) -> HttpAnswer | None:
        at = 0
        try:
            while (line := self._buffer.find(b"\r\n", at, at + _CHUNK_LINE)) >= 0:
                size = self._chunk_size(bytes(self._buffer[at:line]))
                if size == 0:
                    return self._read_trailers(line)
                end = line + 2 + size
                if len(self._body) + size > self._limit:
                    raise self._too_much()
                if len(self._buffer) < end + 2:
                    return None
                if not self._buffer.startswith(b"\r\n", end):
                    raise AnswerError("a chunk of it is longer than it says")
                self._body += self._buffer[line + 2 : end]
                at = end + 2
                self._chunks_left -= 1
            if len(self._buffer) - at >= _CHUNK_LINE:
                raise AnswerError("a chunk of it does not say how long it is")
            return None
        finally:
            del self._buffer[:at]

    def _read_trailers(self, line: int) -> HttpAnswer | None:
        """`line`: where the size of the last chunk ends. What stands in the trailers does not matter."""
        end = self._buffer.find(b"\r\n\r\n", line)
        if end < 0:
            if len(self._buffer) - line > _HEAD:
                raise AnswerError(f"its trailer fields take more than {_HEAD} bytes")
            return None
        return HttpAnswer(self._status, self._head, self._body, self._keeps and end + 4 == len(self._buffer))

    def _chunk_size(self, line: bytes) -> int:
        if self._chunks_left <= 0:
            raise AnswerError(f"it comes in more than {self._chunks} chunks")
        found = _CHUNK_SIZE.fullmatch(line)
        if found is None:
            raise AnswerError("a chunk of it does not say how long it is")
        return int(found[1], 16)

    def _too_much(self) -> AnswerTooLargeError:
        return AnswerTooLargeError(f"more than {self._limit} bytes")
