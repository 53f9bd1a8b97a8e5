"""HPACK header blocks (RFC 7541): decodes requests, each distinct block once; encodes the fields that we send.

Envoy sends the same block for every stream of a connection. A block's meaning depends on its bytes and on the dynamic
table only. So the meaning of a block that did not change the table can be cached until another block changes it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from hpack import Decoder, HeaderTuple
from hpack.exceptions import HPACKError
from hpack.table import HeaderTable

from epp.ext_proc.access_log_entry import OUTCOMES_HEADER
from epp.wire.http2.frames import BrokenConnectionError, Http2ErrorCode

_CACHED_BLOCKS: Final = 16
_CACHED_BLOCK_SIZE: Final = 1024
"""Bounds of the cache: a peer chooses its blocks. Envoy repeats one or two."""
_OUTCOMES: Final = OUTCOMES_HEADER.encode()
_PSEUDO: Final = (b":method", b":scheme", b":path", b":authority")
_TIMEOUT_UNITS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_CONNECTION_SPECIFIC: Final = frozenset(  # RFC 9113 8.2.2
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
_FORBIDDEN_IN_NAMES: Final = frozenset((*range(0x21), *range(0x41, 0x5B), *range(0x7F, 0x100)))
_FORBIDDEN_IN_VALUES: Final = frozenset(b"\0\r\n")
"""RFC 9113 8.2.1."""


class MalformedRequestError(Exception):
    """A header list that HTTP/2 forbids (RFC 9113 section 8): PROTOCOL_ERROR on its stream."""


@dataclass(frozen=True, slots=True)
class Http2Request:
    """The headers that a gRPC server needs; `timeout` in seconds, None without one; `outcomes`: `x-adsum-outcomes`."""

    method: bytes
    path: bytes
    content_type: bytes
    encoding: bytes
    timeout: float | None
    content_length: int | None
    malformed: str | None = None
    outcomes: bytes = b""


class HeaderBlocks:
    """The decoder of one connection; `limit` bounds a block and its decoded fields, in bytes."""

    def __init__(self, limit: int) -> None:
        self._decoder = Decoder(max_header_list_size=limit)
        self._table = _Table()
        self._decoder.header_table = self._table
        self._cache: dict[bytes, Http2Request] = {}
        self._cached_at = 0

    def request(self, block: bytes) -> Http2Request:
        """Decode the request that opens a stream; raises BrokenConnectionError when the table is no longer in step."""
        request = self._cache.get(block)
        if request is not None and self._cached_at == self._table.changes:
            return request
        before = self._table.changes
        fields = self.decode(block)
        if self._cached_at != self._table.changes:
            self._cache.clear()
            self._cached_at = self._table.changes
        request = _request(fields)
        if before == self._table.changes and len(block) <= _CACHED_BLOCK_SIZE:
            if len(self._cache) >= _CACHED_BLOCKS:
                self._cache.clear()
            self._cache[block] = request
        return request

    def decode(self, block: bytes) -> list[HeaderTuple]:
        """Decode any block. All blocks must be decoded in order, to keep the table in step. Raises BrokenConnectionError."""
        try:
            return list(self._decoder.decode(block, raw=True))
        except (HPACKError, IndexError) as error:
            raise BrokenConnectionError(
                Http2ErrorCode.COMPRESSION_ERROR, f"a header block: {type(error).__name__}"
            ) from error


class _Table(HeaderTable):
    """A table whose `changes` are counted: while the number stays, equal blocks mean the same."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0

    def add(self, name: bytes, value: bytes) -> None:
        self.changes += 1
        super().add(name, value)

    @property
    def maxsize(self) -> int:
        return int(HeaderTable.maxsize.fget(self))  # type: ignore[attr-defined]  # a property, untyped upstream

    @maxsize.setter
    def maxsize(self, size: int) -> None:
        self.changes += 1
        HeaderTable.maxsize.fset(self, size)  # type: ignore[attr-defined]


def check_trailers(fields: Iterable[tuple[bytes, bytes]]) -> None:
    """Check trailers, which are ignored; raises MalformedRequestError."""
    for name, value in fields:
        if name.startswith(b":"):
            raise MalformedRequestError("a pseudo header in trailers")
        _check(name, value)


def _request(fields: Iterable[tuple[bytes, bytes]]) -> Http2Request:
    """Apply the rules of RFC 9113 8.2 and 8.3."""
    seen: dict[bytes, bytes] = {}
    try:
        _read(fields, seen)
        length = _content_length(seen.get(b"content-length"))
        _check_pseudo(seen)
    except MalformedRequestError as error:
        return Http2Request(b"", b"", b"", b"", None, None, malformed=str(error))
    return Http2Request(
        method=seen[b":method"],
        path=seen.get(b":path", b""),
        content_type=seen.get(b"content-type", b""),
        encoding=seen.get(b"grpc-encoding", b"identity"),
        timeout=parse_timeout(seen.get(b"grpc-timeout")),
        content_length=length,
        outcomes=seen.get(_OUTCOMES, b""),
    )


def parse_timeout(value: bytes | None) -> float | None:
    """`grpc-timeout` in seconds; None without a valid one."""
    if value is None or re.fullmatch(rb"[0-9]{1,8}[HMSmun]", value) is None:
        return None
    return int(value[:-1]) * _TIMEOUT_UNITS[value[-1:]]


def _read(fields: Iterable[tuple[bytes, bytes]], seen: dict[bytes, bytes]) -> None:
    regular = False
    for name, value in fields:
        if name.startswith(b":"):
            if regular or name not in _PSEUDO or name in seen:
                raise MalformedRequestError(
                    f"the pseudo header {name[:20]!r} is unknown, misplaced or repeated"
                )
        else:
            regular = True
            _check(name, value)
        if not _FORBIDDEN_IN_VALUES.isdisjoint(value):
            raise MalformedRequestError("a header value with a line end or a zero byte")
        seen.setdefault(name, value)


def _check(name: bytes, value: bytes) -> None:
    if not name or not _FORBIDDEN_IN_NAMES.isdisjoint(name) or b":" in name:
        raise MalformedRequestError(f"the header name {name[:20]!r}")
    if name in _CONNECTION_SPECIFIC or (name == b"te" and value != b"trailers"):
        raise MalformedRequestError(f"the header {name!r} belongs to HTTP/1.1")


def _check_pseudo(seen: dict[bytes, bytes]) -> None:
    if seen.get(b":method") == b"CONNECT":
        return
    if not seen.get(b":method") or not seen.get(b":scheme") or not seen.get(b":path"):
        raise MalformedRequestError("a request without :method, :scheme or :path")


def _content_length(value: bytes | None) -> int | None:
    if value is None:
        return None
    if not value.isdigit() or len(value) > 18:
        raise MalformedRequestError("the content-length is not a number")
    return int(value)


def literal(name: bytes, value: bytes) -> bytes:
    """Encode a field without indexing (RFC 7541 6.2.2): what we send never depends on the dynamic table."""
    return b"\0" + _string_literal(name) + _string_literal(value)


def _string_literal(text: bytes) -> bytes:
    """Encode a string literal without Huffman coding, its length as an integer with a 7-bit prefix (RFC 7541 5.1, 5.2)."""
    size = len(text)
    if size < 127:
        return bytes((size,)) + text
    size -= 127
    head = bytearray((127,))
    while size >= 128:
        head.append(size & 127 | 128)
        size >>= 7
    head.append(size)
    return bytes(head) + text
