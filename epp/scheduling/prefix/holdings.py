"""What one endpoint holds of prompts: blocks in the order of their last use, those that were used together as one run.

A prompt is used from its beginning on, so of what it shares with others the beginning is used most often. In the order
of use the first block of a chain is therefore the youngest, and the oldest block of all never has a successor. A run is
a stretch of a chain that was always used as a whole: it is found, moved and dropped at once, and cut in two when a
prompt uses its beginning only. That gives the same order as if each block had a place of its own.

A run is held for good once a request that used it was served there. Until then it is held for the requests that use it
and have no end yet, and goes with the last of them. A block is used by whatever uses one behind it: a run that goes has
no successor.
"""

from collections import OrderedDict
from collections.abc import Sequence
from math import inf
from typing import Final

_MERGE_FROM: Final = 8
"""Runs in one prompt from which on they are joined."""


class _Run:
    """`blocks` follow each other in a chain, the first is its block number `start`; `length` is that of all of them,
    `lengths` those of the chain's blocks. `claims`: whose end it is held until; None: it is held for good.
    """

    __slots__ = ("blocks", "claims", "length", "lengths", "start")

    def __init__(
        self, blocks: list[int], start: int, lengths: Sequence[int], claims: set[int] | None
    ) -> None:
        self.claims = claims
        self.blocks = blocks
        self.start = start
        self.lengths = lengths
        self.length = sum(lengths[start : start + len(blocks)])

    def common_blocks(self, chain: Sequence[int]) -> int:
        """How many of its blocks are the chain's too, which the first is; where two are equal, so is all before them."""
        blocks, start = self.blocks, self.start
        size = min(len(blocks), len(chain) - start)
        if blocks[size - 1] == chain[start + size - 1]:
            return size
        low, high = 1, size - 1
        while low < high:
            middle = (low + high) // 2
            if blocks[middle] == chain[start + middle]:
                low = middle + 1
            else:
                high = middle
        return low

    def count_surplus(self, count: int, length: float) -> int:
        """How many from its end on are at least so many and so long; all of them where it has no more."""
        blocks = len(self.blocks)
        if length >= self.length:
            return blocks
        count, end = min(max(count, 0), blocks), self.start + blocks
        length -= sum(self.lengths[end - count : end])
        while length > 0:
            count += 1
            length -= self.lengths[end - count]
        return count

    def truncate(self, count: int) -> tuple[list[int], int]:
        """Its last blocks, and how long they were."""
        stays, end = len(self.blocks) - count, self.start + len(self.blocks)
        removed, length = self.blocks[stays:], sum(self.lengths[end - count : end])
        del self.blocks[stays:]
        self.length -= length
        return removed, length


class Holdings:
    """The blocks of one endpoint: `count` of them, `length` is that of all; `bit` stands for the endpoint in masks.

    `created_at`: a claim with a smaller number is one on what was forgotten.
    """

    __slots__ = ("_lru", "_runs", "bit", "count", "created_at", "length", "slot")

    def __init__(self, slot: int, created_at: int = 0) -> None:
        self.slot = slot
        self.created_at = created_at
        self.bit = 1 << slot
        self.count = 0
        self.length = 0
        self._runs: dict[int, _Run] = {}
        """By their first block."""
        self._lru: OrderedDict[_Run, None] = OrderedDict()
        """The one that goes next first."""

    def add(self, chain: Sequence[int], lengths: Sequence[int], claim: int | None = None) -> Sequence[int]:
        """It holds this chain from now on, whose blocks become the youngest; returns those that are new.

        `claim`: a number for the request, until `withdraw` takes it back or a use without one makes it good.
        """
        used: list[_Run] = []
        known, size = 0, len(chain)
        while known < size and (run := self._runs.get(chain[known])) is not None:
            shared = run.common_blocks(chain)
            if shared < len(run.blocks):
                run = self._split(run, shared)
            used.append(run)
            if run.claims is not None:
                if claim is None:
                    run.claims = None
                else:
                    run.claims.add(claim)
            known += shared
        new = list(chain[known:])
        if new:
            run = self._runs[new[0]] = _Run(new, known, lengths, None if claim is None else {claim})
            self._lru[run] = None
            self.count += size - known
            self.length += run.length
        if len(used) > _MERGE_FROM and used[-1].claims is None:  # those before it are held for good too
            used = [self._merge(used)]
        for run in reversed(used):
            self._lru.move_to_end(run)
        return new

    def confirm(self, chain: Sequence[int], claim: int) -> bool:
        """The request that claimed this chain was served; False: part of it has gone since, and is to be used again."""
        known, size, last = 0, len(chain), 0
        while known < size and (run := self._runs.get(chain[known])) is not None:
            if run.claims is not None:
                if claim not in run.claims:
                    return False
                run.claims = None
            known += len(run.blocks)
            last = run.blocks[-1]
        return known == size and (not size or last == chain[-1])

    def withdraw(self, chain: Sequence[int], claim: int) -> Sequence[int]:
        """The request that claimed this chain failed; returns the blocks that went, because nobody else uses them."""
        removed_blocks: list[int] = []
        known, size = 0, len(chain)
        while known < size and (run := self._runs.get(chain[known])) is not None:
            known += len(run.blocks)
            if run.claims is None or claim not in run.claims:
                continue
            run.claims.remove(claim)
            if not run.claims:
                del self._lru[run], self._runs[run.blocks[0]]
                self.count -= len(run.blocks)
                self.length -= run.length
                removed_blocks += run.blocks
        return removed_blocks

    def evict(self, count: int, length: float = inf) -> Sequence[int]:
        """Until there are no more than `count`, and they are no longer than `length`; returns those that went."""
        removed_blocks: list[int] = []
        while self.count > count or self.length > length:
            run = next(iter(self._lru))
            surplus = run.count_surplus(self.count - count, self.length - length)
            if surplus == len(run.blocks):
                del self._lru[run], self._runs[run.blocks[0]]
                removed, removed_length = run.blocks, run.length
            else:
                removed, removed_length = run.truncate(surplus)
            self.count -= len(removed)
            self.length -= removed_length
            removed_blocks += removed
        return removed_blocks

    def _merge(self, runs: Sequence[_Run]) -> _Run:
        """One in place of those that follow each other and are used together now, so that the next use has fewer to go over."""
        blocks, lengths = list[int](), list[int]()
        for run in runs:
            del self._lru[run], self._runs[run.blocks[0]]
            blocks += run.blocks
            lengths += run.lengths[run.start : run.start + len(run.blocks)]
        merged = self._runs[blocks[0]] = _Run(blocks, 0, lengths, None)
        self._lru[merged] = None
        return merged

    def _split(self, run: _Run, size: int) -> _Run:
        """Its first `size` blocks as a run of their own; the rest keeps its place in the order."""
        claims = None if run.claims is None else set(run.claims)
        head = _Run(run.blocks[:size], run.start, run.lengths, claims)
        run.blocks = run.blocks[size:]
        run.start += size
        run.length -= head.length
        self._runs[head.blocks[0]] = head
        self._runs[run.blocks[0]] = run
        self._lru[head] = None
        return head
