"""The blocks that one endpoint is believed to hold, evicted least recently used first.

Eviction mirrors the worker's. vLLM frees the blocks of a finished request in reverse order, so that the last block of a
prompt, which the fewest other prompts share, is evicted first (docs.vllm.ai, Automatic Prefix Caching: Free, Eviction).
Here too the first block of a chain is always the most recently used one of it, so the block to evict never has a
successor that stays: what remains of a chain is always a prefix.

Blocks are kept in runs: a run is a stretch of a chain whose blocks were always used together. A run is found, moved and
evicted in one step, and split when a prompt shares only its beginning. The order is the same as with one entry for each
block, at a fraction of the memory: about 120 bytes a block where runs are 70 blocks long, up to 586 where each stands
alone (`BLOCK_BYTES`).

A run is confirmed once a worker served a request that used it. Until then it is only claimed: it exists for the
requests that use it and whose end is not known, and is removed with the last of them (`withdraw`). A request that claims a
block claims all blocks before it, so a removed run has no successor either.
"""

from collections import OrderedDict
from collections.abc import Sequence
from math import inf
from typing import Final

_MERGE_FROM: Final = 8
"""A prompt that uses more runs than this gets them merged: a conversation of many turns adds one run a turn."""


class _Run:
    """`blocks` are hashes of consecutive blocks of a chain, from its block number `start` on.

    `lengths`: of all blocks of the chain, in units; `length`: of this run. `claims`: the requests that claim it;
    None: it is confirmed.
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
        """The number of leading blocks shared with a chain that shares the first one.

        A hash covers everything before its block, so equality at one position implies it at all earlier ones: binary
        search is enough.
        """
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
        """The number of blocks at its end that make up at least `count` blocks and `length` units, at most all."""
        blocks = len(self.blocks)
        if length >= self.length:
            return blocks
        # blocks have different lengths: first as many as are too many, then more until they are long enough
        count, end = min(max(count, 0), blocks), self.start + blocks
        length -= sum(self.lengths[end - count : end])
        while length > 0:
            count += 1
            length -= self.lengths[end - count]
        return count

    def truncate(self, count: int) -> tuple[list[int], int]:
        """Remove the last `count` blocks; returns them and their length in units."""
        stays, end = len(self.blocks) - count, self.start + len(self.blocks)
        removed, length = self.blocks[stays:], sum(self.lengths[end - count : end])
        del self.blocks[stays:]
        self.length -= length
        return removed, length


class Holdings:
    """The blocks of one endpoint. `count`: their number; `length`: in units; `bit`: the endpoint's bit in masks.

    `created_at`: the number of the index's claim counter at creation. A claim with a smaller number belongs to earlier
    holdings of the same endpoint, which were forgotten.
    """

    __slots__ = ("_lru", "_runs", "bit", "count", "created_at", "length", "slot")

    def __init__(self, slot: int, created_at: int = 0) -> None:
        self.slot = slot
        self.created_at = created_at
        self.bit = 1 << slot
        self.count = 0
        self.length = 0
        self._runs: dict[int, _Run] = {}
        """By the hash of their first block."""
        self._lru: OrderedDict[_Run, None] = OrderedDict()
        """Least recently used first."""

    def add(self, chain: Sequence[int], lengths: Sequence[int], claim: int | None = None) -> Sequence[int]:
        """Add a chain, whose blocks become the most recently used; returns those that are new.

        `claim`: the number of the request, until `withdraw` takes it back; None: the chain is confirmed.
        """
        used: list[_Run] = []
        known, size = 0, len(chain)
        while known < size and (run := self._runs.get(chain[known])) is not None:
            shared = run.common_blocks(chain)
            if shared < len(run.blocks):  # this prompt parts from the run inside it
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
        # a confirmed run has only confirmed predecessors
        if len(used) > _MERGE_FROM and used[-1].claims is None:
            used = [self._merge(used)]
        # the beginning of the chain last: it has to outlive what follows it
        for run in reversed(used):
            self._lru.move_to_end(run)
        return new

    def confirm(self, chain: Sequence[int], claim: int) -> bool:
        """The request that claimed this chain was served. False: part of it was evicted meanwhile, so add it again."""
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
        """The request that claimed this chain failed; returns the blocks that were removed, since no other request uses them."""
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
        """Remove the least recently used blocks until at most `count` blocks and `length` units are left; returns the removed."""
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
        """Join consecutive, confirmed runs from a chain's beginning into one."""
        blocks, lengths = list[int](), list[int]()
        for run in runs:
            del self._lru[run], self._runs[run.blocks[0]]
            blocks += run.blocks
            lengths += run.lengths[run.start : run.start + len(run.blocks)]
        merged = self._runs[blocks[0]] = _Run(blocks, 0, lengths, None)
        self._lru[merged] = None
        return merged

    def _split(self, run: _Run, size: int) -> _Run:
        """Make the first `size` blocks a run of their own; the rest keeps its position in the order."""
        claims = None if run.claims is None else set(run.claims)  # a copy: either part may be confirmed alone
        head = _Run(run.blocks[:size], run.start, run.lengths, claims)
        run.blocks = run.blocks[size:]
        run.start += size
        run.length -= head.length
        self._runs[head.blocks[0]] = head
        self._runs[run.blocks[0]] = run
        self._lru[head] = None  # `add` moves it to the end next
        return head
