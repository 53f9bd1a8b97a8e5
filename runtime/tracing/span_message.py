"""Encodes an ended span as OTLP's protobuf message. Pure.

By hand, because protobuf's objects take ten times as long in Python (benchmarks/README.md, tracing). The numbers of fields:
https://github.com/open-telemetry/opentelemetry-proto/blob/v1.5.0/opentelemetry/proto/trace/v1/trace.proto
and, of attributes, common/v1/common.proto. An encoding:
https://protobuf.dev/programming-guides/encoding/
"""

import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from runtime.tracing.recording import RecordedSpan
from runtime.tracing.span import AttributeValue, Kind

_KINDS: Final[Mapping[Kind, int]] = {"internal": 1, "server": 2, "client": 3, "producer": 4, "consumer": 5}
_TIMES: Final = struct.Struct("<BQBQ")
_DOUBLE: Final = struct.Struct("<d")
_UINT64: Final = (1 << 64) - 1
_BYTES: Final = tuple([bytes([number]) for number in range(0x80)])
_UNSET: Final = b"\x7a\x00"
_ERROR: Final = b"\x18\x02"
_OWN_PARENT: Final = b"\x85\x01\x00\x01\x00\x00"
"""`flags`: whether the parent is remote is known, and it is not."""
_REMOTE_PARENT: Final = b"\x85\x01\x00\x03\x00\x00"


def span_message(span: RecordedSpan, ended: int) -> bytes:
    """The fields of a Span; `ended`: Unix nanoseconds."""
    parts = [b"\x0a\x10", span.trace_id, b"\x12\x08", span.span_id]
    if span.state:
        parts.append(delimited(b"\x1a", span.state.encode()))
    if span.parent_id:
        parts += b"\x22\x08", span.parent_id
    parts.append(_named(span.name, span.kind))
    parts.append(_TIMES.pack(0x39, span.began, 0x41, ended))
    for name, value in span.attributes.items():
        if type(value) is float:
            parts += _before_double(name), _DOUBLE.pack(value)
        elif isinstance(value, str | int):
            parts.append(_attribute(name, value))
        else:
            parts.append(delimited(b"\x4a", delimited(_key(name), _any_value(value))))
    if span.failure is None:
        parts.append(_UNSET)
    else:
        parts.append(delimited(b"\x7a", delimited(b"\x12", _utf8(span.failure)) + _ERROR))
    parts.append(_REMOTE_PARENT if span.remote else _OWN_PARENT)
    return b"".join(parts)


def delimited(tag: bytes, content: bytes) -> bytes:
    """A field of which the length comes first: a text, bytes or a message."""
    size = len(content)
    return tag + (_BYTES[size] if size < 0x80 else _varint(size)) + content


@lru_cache(maxsize=512, typed=True)  # typed: True is no 1
def _attribute(name: str, value: str | int) -> bytes:
    """Most of them recur: names of plugins and models, counts, the id of a request in four of its spans."""
    return delimited(b"\x4a", delimited(_key(name), _any_value(value)))


@lru_cache(maxsize=1024)
def _before_double(name: str) -> bytes:
    whole = delimited(b"\x4a", delimited(_key(name), b"\x21" + _DOUBLE.pack(0.0)))
    return whole[: -_DOUBLE.size]


def _any_value(value: AttributeValue) -> bytes:
    if isinstance(value, str):
        return delimited(b"\x0a", _utf8(value))
    if isinstance(value, bool):
        return b"\x10\x01" if value else b"\x10\x00"
    if isinstance(value, int):
        return b"\x18" + _varint(value & _UINT64)
    if isinstance(value, float):
        return b"\x21" + _DOUBLE.pack(value)
    return delimited(b"\x2a", b"".join([delimited(b"\x0a", _any_value(one)) for one in value]))


@lru_cache(maxsize=1024)
def _key(name: str) -> bytes:
    """The name of an attribute, and the tag of its value."""
    return delimited(b"\x0a", _utf8(name)) + b"\x12"


@lru_cache(maxsize=1024)
def _named(name: str, kind: Kind) -> bytes:
    return delimited(b"\x2a", _utf8(name)) + b"\x30" + _BYTES[_KINDS[kind]]


def _utf8(text: str) -> bytes:
    """Without lone surrogates, which a receiver refuses, and with them the whole batch of spans."""
    return text.encode("utf-8", "replace")


def _varint(number: int) -> bytes:
    if number < 0x80:
        return _BYTES[number]
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
