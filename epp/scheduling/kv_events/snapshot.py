"""Writes and reads what one publisher's cache holds, for another picker: a header, and columns of numbers. Pure.

The keys are those of an index with the same seed, which peers share. The number and the digest of the last batch say where the
publisher's own replay goes on; who adopts it believes nothing before the publisher has sent that batch again.
"""

import sys
from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from epp.scheduling.kv_events.batches import Scope, Steps

MOST_HEADER: Final = 64 * 1024
_PART: Final = 256 * 1024
_PIECE: Final = 256
"""References that are read in one go."""
_KINDS: Final = "QQQHI"
"""The types of the columns, as `array` names them."""
_MOST_SCOPES: Final = 256
_VERSION: Final = 1


class HeldBlocks(NamedTuple):
    """`names` and `keys` beside each other: of all blocks with a reference. `ref_*`: the references of those with other ones
    than a single one in `first_scope`; `ref_scopes`: places in `scopes`."""

    block_tokens: int
    first_scope: Scope | None
    needed_whole: dict[int, bool]
    scopes: list[Scope]
    names: "array[int]"
    keys: "array[int]"
    ref_keys: "array[int]"
    ref_scopes: "array[int]"
    ref_counts: "array[int]"

    def references(self) -> Steps[dict[int, dict[Scope, int]]]:
        """Count, by key, the references of each scope."""
        found: dict[int, dict[Scope, int]] = {}
        for at, (key, scope, count) in enumerate(
            zip(self.ref_keys, self.ref_scopes, self.ref_counts, strict=True)
        ):
            if at % _PIECE == 0:
                yield
            found.setdefault(key, {})[self.scopes[scope]] = count
        return found


class CacheSnapshot(NamedTuple):
    """`layout`: two indexes with the same one have the same keys. `following`: the number of the next batch. `digest` and
    `time`: of the last one."""

    layout: int
    following: int
    digest: int
    time: float
    held: HeldBlocks


class _Header(msgspec.Struct, array_like=True):
    version: int
    byteorder: str
    layout: int
    following: int
    digest: int
    time: float
    block_tokens: int
    first_scope: Scope | None
    needed_whole: dict[int, bool]
    scopes: list[Scope]
    blocks: int
    references: int


_HEADER: Final = msgspec.msgpack.Decoder(_Header)


class SnapshotError(ValueError):
    """It is none; the text says why."""


def written(snapshot: CacheSnapshot) -> Iterator[bytes]:
    """The messages that a SnapshotReader puts together: a header, then the columns in pieces."""
    held = snapshot.held
    header = _Header(_VERSION, sys.byteorder, *snapshot[:4], *held[:4], len(held.keys), len(held.ref_keys))
    yield msgspec.msgpack.encode(header)
    for column in held[4:]:
        data = memoryview(column).cast("B")
        for at in range(0, len(data), _PART):
            yield bytes(data[at : at + _PART])


class SnapshotReader:
    """Puts the messages together. `most_blocks`: more are refused before they come. Each call raises SnapshotError for what is no
    snapshot."""

    def __init__(self, header: bytes, most_blocks: int) -> None:
        if len(header) > MOST_HEADER:
            raise SnapshotError(f"a header of {len(header):,} bytes; expected at most {MOST_HEADER:,}")
        try:
            self._header = read = _HEADER.decode(header)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise SnapshotError(f"no header: {str(error)[:200]}") from error
        if (read.version, read.byteorder) != (_VERSION, sys.byteorder):
            raise SnapshotError(
                f"version {read.version}, {read.byteorder[:20]} endian; expected {_VERSION}, {sys.byteorder}"
            )
        if not (0 <= read.references <= read.blocks <= most_blocks and len(read.scopes) <= _MOST_SCOPES):
            raise SnapshotError(
                f"{read.blocks:,} blocks, {read.references:,} with references; expected at most {most_blocks:,}"
            )
        self._lengths = [read.blocks] * 2 + [read.references] * 3
        self._sizes = [
            length * array(kind).itemsize for kind, length in zip(_KINDS, self._lengths, strict=True)
        ]
        # bounded: what the header says
        self._data = bytearray()

    def add(self, part: bytes) -> None:
        self._data += part
        if len(self._data) > sum(self._sizes):
            raise SnapshotError("more than its header says")

    def snapshot(self) -> CacheSnapshot:
        if len(self._data) != sum(self._sizes):
            raise SnapshotError(f"{len(self._data):,} bytes; its header says {sum(self._sizes):,}")
        columns, at = [], 0
        for kind, size in zip(_KINDS, self._sizes, strict=True):
            column = array(kind)
            column.frombytes(memoryview(self._data)[at : at + size])
            columns.append(column)
            at += size
        head = self._header
        if max(columns[3], default=0) >= max(1, len(head.scopes)):
            raise SnapshotError("a scope without a name")
        held = HeldBlocks(head.block_tokens, head.first_scope, head.needed_whole, head.scopes, *columns)
        return CacheSnapshot(head.layout, head.following, head.digest, head.time, held)
