"""Runs of blocks, each stored once for all endpoints that hold it. Pure.

A run is a stretch of a chain whose blocks were always used together. It is found, moved and evicted in one step, and split
when a prompt shares only its beginning. A run is a number; what is known of it stands in columns, because an object for each
would be traversed by the garbage collector, of which a pool of a thousand workers has a million.
"""

import sys
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

NO_RUN: Final = -1
HASH_BYTES: Final = 8
"""Each block of a run takes so many."""
RUN_BYTES: Final = 288
"""Memory of a run beside its blocks: the hash and the number by which it is found, its place in the dict, its columns. Measured,
with `HOLD_BYTES`: 445 to 515 for both (benchmarks/picking/README.md, prefixes)."""
_PARTS: Final = 64
"""Dicts of the table. One would grow in a single step, which takes a tenth of a second if there are millions of runs."""


class Chain:
    """The block hashes of one prompt, each of which covers the prompt up to the end of its block.

    What `RunTable.walk` found in `state` of the table: `runs`, from the chain's beginning on, the number of blocks up to the
    `ends` of what each shares with the chain, and in `parted` which of them are longer than that.
    """

    __slots__ = ("_packed", "ends", "hashes", "parted", "runs", "size", "state")

    def __init__(self, hashes: Sequence[int]) -> None:
        self.hashes = hashes
        self.size = len(hashes)
        self._packed = b""
        self.state = NO_RUN
        self.runs: list[int] = []
        self.ends: list[int] = []
        self.parted: list[int] = []

    def packed(self) -> bytes:
        """The hashes as in a run."""
        if not self._packed:
            self._packed = array("Q", self.hashes).tobytes()
        return self._packed


class RunTable:
    """`holders`: the endpoints that hold each run, as the bits of an integer; `lengths`: of the runs, in units; `count`,
    `blocks`: of all runs; `state`: another number whenever runs changed; `ends`: of the blocks of each chain, in units.
    """

    def __init__(self) -> None:
        self.state = 0
        self.ends: Sequence[int] | None = None
        self.count = 0
        self.blocks = 0
        self.holders: list[int] = []
        self.lengths = array("i")
        self._starts = array("i")
        """The number of its first block in its chain."""
        self._packed: list[bytes] = []
        """The hashes of its blocks."""
        self._by_first: list[dict[int, int]] = [{} for _ in range(_PARTS)]
        """By the hash of their first block, in the part that the hash chooses."""
        self._free: list[int] = []
        """Numbers of runs that are no more."""

    def size(self, run: int) -> int:
        """The number of its blocks."""
        return len(self._packed[run]) // HASH_BYTES

    def walk(self, chain: Chain) -> None:
        """Find the runs of the chain."""
        if chain.state == self.state:
            return
        hashes, size, known = chain.hashes, chain.size, 0
        by_first, packed, whole = self._by_first, self._packed, b""
        runs: list[int] = []
        ends: list[int] = []
        parted: list[int] = []
        chain.state, chain.runs, chain.ends, chain.parted = self.state, runs, ends, parted
        while known < size:
            first = hashes[known]
            run = by_first[first % _PARTS].get(first, NO_RUN)
            if run == NO_RUN:
                break
            whole = whole or chain.packed()
            blocks, begin = packed[run], known * HASH_BYTES
            if whole.startswith(blocks, begin):
                known += len(blocks) // HASH_BYTES
            else:
                known += _common(blocks, whole[begin : begin + len(blocks)])
                parted.append(len(runs))
            runs.append(run)
            ends.append(known)

    def blocks_within(self, run: int, length: int) -> int:
        """The number of its leading blocks that are not longer than that; the run is."""
        ends, start = self.ends, self._starts[run]
        if ends is None:
            return length
        before = ends[start - 1] if start else 0
        return bisect_right(ends, before + length, start, start + self.size(run)) - start

    def add(self, packed: bytes, start: int, holders: int) -> int:
        """The new run of these blocks."""
        if self._free:
            run = self._free.pop()
            self._packed[run], self._starts[run], self.holders[run] = packed, start, holders
        else:
            run = len(self._packed)
            self._packed.append(packed)
            self._starts.append(start)
            self.lengths.append(0)
            self.holders.append(holders)
        self._measure(run)
        first = _first(packed)
        self._by_first[first % _PARTS][first] = run
        self.state += 1
        self.count += 1
        self.blocks += len(packed) // HASH_BYTES
        return run

    def remove(self, run: int) -> None:
        packed = self._packed[run]
        first = _first(packed)
        del self._by_first[first % _PARTS][first]
        self._packed[run], self.holders[run] = b"", 0
        self._free.append(run)
        self.state += 1
        self.count -= 1
        self.blocks -= len(packed) // HASH_BYTES

    def truncate(self, run: int, size: int) -> None:
        """Keep its first `size` blocks, at least one."""
        packed = self._packed[run]
        self._packed[run] = packed[: size * HASH_BYTES]
        self._measure(run)
        self.state += 1
        self.blocks -= len(packed) // HASH_BYTES - size

    def divide(self, run: int, size: int) -> int:
        """Keep its first `size` blocks, at least one; returns a new run of the others, which there must be."""
        packed = self._packed[run]
        self.truncate(run, size)
        return self.add(packed[size * HASH_BYTES :], self._starts[run] + size, self.holders[run])

    def join(self, run: int, following: int) -> None:
        """Append the blocks of the run that follows it, which ends."""
        packed = self._packed[following]
        self.remove(following)
        self._packed[run] += packed
        self._measure(run)
        self.blocks += len(packed) // HASH_BYTES

    def _measure(self, run: int) -> None:
        ends, start, size = self.ends, self._starts[run], len(self._packed[run]) // HASH_BYTES
        length = size if ends is None else ends[start + size - 1] - (ends[start - 1] if start else 0)
        self.lengths[run] = length


def _first(packed: bytes) -> int:
    return int.from_bytes(packed[:HASH_BYTES], sys.byteorder)


def _common(blocks: bytes, part: bytes) -> int:
    """The number of leading blocks that both share, of which the first is shared.

    A hash covers everything before its block, so equality at one position implies it at all earlier ones: binary search is
    enough.
    """
    if blocks.startswith(part):
        return len(part) // HASH_BYTES
    low, high = 1, len(part) // HASH_BYTES
    while low < high:
        middle = (low + high) // 2
        at = middle * HASH_BYTES
        if part[at : at + HASH_BYTES] == blocks[at : at + HASH_BYTES]:
            low = middle + 1
        else:
            high = middle
    return low
