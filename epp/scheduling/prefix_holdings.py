"""What one endpoint holds of prompts: blocks in the order of their last use, those that were used together as one run.

A prompt is used from its beginning on, so of what it shares with others the beginning is used most often. In the order
of use the first block of a chain is therefore the youngest, and the oldest block of all never has a successor. A run is
a stretch of a chain that was always used as a whole: it is found, moved and dropped at once, and cut in two when a
prompt uses its beginning only. That gives the same order as if each block had a place of its own.
"""

from collections import OrderedDict
from collections.abc import Sequence
from math import inf
from typing import Final

_MANY: Final = 8
"""Runs in one prompt from which on they are joined."""


class _Run:
    """`blocks` follow each other in a chain, the first is its block number `start`; `length` is that of all of them,
    `lengths` those of the chain's blocks.
    """

    __slots__ = ("blocks", "length", "lengths", "start")

    def __init__(self, blocks: list[int], start: int, lengths: Sequence[int]) -> None:
        self.blocks = blocks
        self.start = start
        self.lengths = lengths
        self.length = sum(lengths[start : start + len(blocks)])

    def shared(self, chain: Sequence[int]) -> int:
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

    def surplus(self, count: int, length: float) -> int:
        """How many from its end on are at least so many and so long; all of them where it has no more."""
        blocks = len(self.blocks)
        if length >= self.length:
            return blocks
        count, place = min(max(count, 0), blocks), self.start + blocks
        length -= sum(self.lengths[place - count : place])
        while length > 0:
            count += 1
            length -= self.lengths[place - count]
        return count

    def drop(self, count: int) -> tuple[list[int], int]:
        """Its last blocks, and how long they were."""
        stays, place = len(self.blocks) - count, self.start + len(self.blocks)
        went, length = self.blocks[stays:], sum(self.lengths[place - count : place])
        del self.blocks[stays:]
        self.length -= length
        return went, length


class Holdings:
    """The blocks of one endpoint: `count` of them, `length` is that of all; `bit` stands for the endpoint in masks."""

    __slots__ = ("_order", "_runs", "bit", "count", "length", "slot")

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.bit = 1 << slot
        self.count = 0
        self.length = 0
        self._runs: dict[int, _Run] = {}
        """By their first block."""
        self._order: OrderedDict[_Run, None] = OrderedDict()
        """The one that goes next first."""

    def use(self, chain: Sequence[int], lengths: Sequence[int]) -> Sequence[int]:
        """It holds this chain from now on, whose blocks become the youngest; returns those that are new."""
        used: list[_Run] = []
        known, size = 0, len(chain)
        while known < size and (run := self._runs.get(chain[known])) is not None:
            shared = run.shared(chain)
            used.append(run if shared == len(run.blocks) else self._cut(run, shared))
            known += shared
        new = list(chain[known:])
        if new:
            run = self._runs[new[0]] = _Run(new, known, lengths)
            self._order[run] = None
            self.count += size - known
            self.length += run.length
        if len(used) > _MANY:
            used = [self._joined(used)]
        for run in reversed(used):
            self._order.move_to_end(run)
        return new

    def shrink(self, count: int, length: float = inf) -> Sequence[int]:
        """Until there are no more than `count`, and they are no longer than `length`; returns those that went."""
        gone: list[int] = []
        while self.count > count or self.length > length:
            run = next(iter(self._order))
            surplus = run.surplus(self.count - count, self.length - length)
            if surplus == len(run.blocks):
                del self._order[run], self._runs[run.blocks[0]]
                went, short = run.blocks, run.length
            else:
                went, short = run.drop(surplus)
            self.count -= len(went)
            self.length -= short
            gone += went
        return gone

    def _joined(self, runs: Sequence[_Run]) -> _Run:
        """One in place of those that follow each other and are used together now, so that the next use has fewer to go over."""
        blocks, lengths = list[int](), list[int]()
        for run in runs:
            del self._order[run], self._runs[run.blocks[0]]
            blocks += run.blocks
            lengths += run.lengths[run.start : run.start + len(run.blocks)]
        joined = self._runs[blocks[0]] = _Run(blocks, 0, lengths)
        self._order[joined] = None
        return joined

    def _cut(self, run: _Run, size: int) -> _Run:
        """Its first `size` blocks as a run of their own; the rest keeps its place in the order."""
        head = _Run(run.blocks[:size], run.start, run.lengths)
        run.blocks = run.blocks[size:]
        run.start += size
        run.length -= head.length
        self._runs[head.blocks[0]] = head
        self._runs[run.blocks[0]] = run
        self._order[head] = None
        return head
