"""Maps prompt prefixes to the endpoints believed to hold them in their prefix caches.

A prompt is a chain of block hashes. Each hash covers the parent's hash and the block, as in vLLM (docs.vllm.ai, Automatic
Prefix Caching): equal hashes mean equal prompts up to there. KV values depend on all tokens before them, so a block is of
use only after the same prefix; a hash of the block alone would match text in the wrong place.

Two properties make a lookup cheap. An endpoint that holds a block holds all blocks before it, and eviction keeps that
true (holdings.py). So the endpoints that hold block n are a subset of those that hold block n-1, and the end of a match
is found by binary search. And the endpoints of a block are the bits of one integer, so one operation intersects them all.

It is a belief, not a copy: no worker reports its cache. A chain is claimed at the pick, not at the answer. If answers are
not streamed, response headers come with the end of the answer; an index that learns only then has
the same prefix computed on every worker meanwhile (time to first token 13.85 s instead of 0.64 s, benchmarks/README.md: routing). A claim is confirmed
when the worker answers with 2xx, and withdrawn when it does not.
"""

import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from math import inf
from typing import Final, TypeAlias

import numpy as np

from epp.endpoints.endpoint import Endpoint, Indices
from epp.scheduling.prefix.holdings import Holdings

log = logging.getLogger(__name__)

Key: TypeAlias = tuple[str, str]
"""`Endpoint.key`. A new incarnation is another key, since its cache starts empty."""

BLOCK_BYTES: Final = 600
"""Memory of one block at one endpoint. Measured: up to 586 if every run has one block, about 120 if it has 70."""
MAX_BYTES: Final = 384 * 1024 * 1024
"""Memory of one index, unless the configuration says another. Endpoints have equal shares, so that a busy one cannot evict what others hold."""

_MAX_POOLS: Final = 4
"""Sets of endpoints whose rows are kept: all of them, those with fresh numbers, subsets of the requests of the moment."""
_MAX_CACHED_MASKS: Final = 64
"""Sets of endpoints whose rows are cached."""
_FEW_HOLDERS: Final = 8
"""Up to this many endpoints a loop over bits is faster than numpy."""


class _RowsBySlot:
    """The row in a pool of the endpoint in each slot, -1 if the pool lacks it."""

    __slots__ = ("_array", "_arrays", "_list")

    def __init__(self, rows: list[int]) -> None:
        self._list = rows
        self._array = np.array(rows, dtype=np.intp)
        self._arrays: dict[int, Indices] = {}
        """By mask. The endpoints that hold a popular prefix stay the same for many requests."""

    def row_list(self, mask: int) -> list[int]:
        """The rows of the endpoints in a mask."""
        found = []
        while mask:
            lowest = mask & -mask
            row = self._list[lowest.bit_length() - 1]
            if row >= 0:
                found.append(row)
            mask ^= lowest
        return found

    def row_array(self, mask: int) -> Indices:
        """The same as an array, faster if there are many."""
        kept = self._arrays.get(mask)
        if kept is not None:
            return kept
        count = len(self._list)
        packed = np.frombuffer(mask.to_bytes((count + 7) // 8, "little"), dtype=np.uint8)
        rows = self._array[np.unpackbits(packed, count=count, bitorder="little").view(np.bool_)]
        if len(self._arrays) >= _MAX_CACHED_MASKS:
            self._arrays.clear()
        found = self._arrays[mask] = rows[rows >= 0]
        return found


class PrefixIndex:
    """Block hashes by endpoint, in at most `max_bytes` of memory.

    `chain`: the block hashes of one prompt. `capacity`: units of one endpoint's cache; a block of length n takes n of them.
    """

    __slots__ = (
        "_claims",
        "_free",
        "_holdings",
        "_is_crowded",
        "_largest",
        "_masks",
        "_max_blocks",
        "_rows",
        "_slots",
        "evicted",
        "held_before",
        "max_bytes",
    )

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.evicted = 0
        """Blocks that were forgotten for want of memory, though the endpoint's cache has room for them."""
        self._is_crowded = False
        self._max_blocks = max_bytes // BLOCK_BYTES
        self._masks: dict[int, int] = {}
        """By block hash: the endpoints that hold it, as the bits of an integer."""
        self._holdings: OrderedDict[Key, Holdings] = OrderedDict()
        """Least recently updated first."""
        self._largest = 0
        """No endpoint holds more blocks than this."""
        self.held_before = 0
        """How many leading blocks of the last chain that was claimed or recorded its endpoint held already."""
        self._claims = 0
        self._free: list[int] = []
        self._slots = 0
        self._rows: list[tuple[tuple[Endpoint, ...], _RowsBySlot]] = []
        """The endpoints of the last matches, the latest last, and their rows."""

    def __len__(self) -> int:
        """The number of blocks, each counted once for every endpoint that holds it."""
        return sum(one.count for one in self._holdings.values())

    def match(self, chain: Sequence[int], endpoints: tuple[Endpoint, ...]) -> Indices | dict[int, int]:
        """The number of leading blocks of the chain that each endpoint holds.

        A column over the endpoints, or if only a few hold any, those by row.
        """
        masks = self._masks
        mask = masks.get(chain[0], 0) if chain else 0
        if not mask:
            return {}
        rows = self._rows_of(endpoints)
        few: dict[int, int] = {}
        many = np.zeros(len(endpoints), dtype=np.intp) if mask.bit_count() > _FEW_HOLDERS else None
        end = 0
        while mask:
            end = self._match_end(chain, end, mask)
            longer = masks.get(chain[end], 0) & mask if end < len(chain) else 0
            if many is None:
                few |= dict.fromkeys(rows.row_list(mask & ~longer), end)
            else:
                many[rows.row_array(mask)] = end  # endpoints that hold more are overwritten in the next turn
            mask = longer
        return few if many is None else many

    def held(self, chain: Sequence[int], key: Key) -> int:
        """The number of leading blocks of the chain that one endpoint holds."""
        holdings = self._holdings.get(key)
        return self._match_end(chain, 0, holdings.bit) if chain and holdings is not None else 0

    def record(
        self, chain: Sequence[int], key: Key, capacity: int, lengths: Sequence[int] | None = None
    ) -> None:
        """The endpoint holds this chain: a worker has served it. Evicts older blocks beyond `capacity`.

        `lengths`: of the blocks in units, may go on behind the chain; None: 1 each.
        """
        self._add_chain(chain, key, capacity, lengths, None)

    def claim(
        self, chain: Sequence[int], key: Key, capacity: int, lengths: Sequence[int] | None = None
    ) -> int:
        """The endpoint will hold this chain, because a request was sent there. Returns the claim's number.

        Like `record`, but blocks that nothing else confirms are removed when the last claim on them is withdrawn.
        """
        if key not in self._holdings:
            self._add_endpoint(key)
        self._claims += 1
        self._add_chain(chain, key, capacity, lengths, self._claims)
        return self._claims

    def withdraw(self, chain: Sequence[int], key: Key, claim: int) -> None:
        """The endpoint did not serve the request that made this claim."""
        holdings = self._holdings.get(key)
        if holdings is not None:
            self._clear_masks(holdings, holdings.withdraw(chain, claim))

    def confirm(
        self,
        chain: Sequence[int],
        key: Key,
        claim: int,
        capacity: int,
        lengths: Sequence[int] | None = None,
    ) -> None:
        """The endpoint served the request that made this claim. Ignored if the endpoint was forgotten since: its cache is new."""
        holdings = self._holdings.get(key)
        if holdings is not None and holdings.created_at < claim and not holdings.confirm(chain, claim):
            self._add_chain(chain, key, capacity, lengths, None)

    def _add_chain(
        self,
        chain: Sequence[int],
        key: Key,
        capacity: int,
        lengths: Sequence[int] | None,
        claim: int | None,
    ) -> None:
        holdings = self._holdings.get(key) or self._add_endpoint(key)
        self._holdings.move_to_end(key)
        bit, masks = holdings.bit, self._masks
        new = holdings.add(chain, [1] * len(chain) if lengths is None else lengths, claim)
        self.held_before = len(chain) - len(new)
        for block in new:
            others = masks.get(block)
            # most blocks have one holder; sharing its integer saves an object for each
            masks[block] = bit if others is None else others | bit
        limit = self._blocks_each()
        if holdings.length > capacity:
            self._evict(holdings, holdings.count, capacity)
        if holdings.count > limit:
            self._evict_for_memory(holdings, limit)
            self._warn_of_memory(holdings, capacity)
        self._largest = max(self._largest, holdings.count)

    def forget(self, key: Key) -> None:
        """Drop what is known of an endpoint: its cache is gone."""
        holdings = self._holdings.pop(key, None)
        if holdings is not None:
            self._evict(holdings, 0)
            self._free.append(holdings.slot)  # reused, so that masks stay short
            self._rows.clear()

    def retain(self, keys: Iterable[Key]) -> None:
        """Keep these endpoints, and as many absent ones, the most recently updated: a worker may be away for a moment only."""
        present = set(keys)
        if len(self._holdings) <= len(present):
            return
        absent = [key for key in self._holdings if key not in present]
        for key in absent[: max(0, len(absent) - len(present))]:
            self.forget(key)

    def _match_end(self, chain: Sequence[int], start: int, mask: int) -> int:
        """The end of the part of the chain that all of `mask` hold, by binary search: masks only lose bits along a chain."""
        get, low, high = self._masks.get, start, len(chain)
        if get(chain[-1], 0) & mask == mask:  # the same prompt again: no search
            return high
        while low < high:
            middle = (low + high) // 2
            if get(chain[middle], 0) & mask == mask:
                low = middle + 1
            else:
                high = middle
        return low

    def _rows_of(self, endpoints: tuple[Endpoint, ...]) -> _RowsBySlot:
        # the same endpoints come as the same tuple until one of them changes, so identity is enough
        for known, found in reversed(self._rows):
            if known is endpoints:
                return found
        rows = [-1] * self._slots
        for row, endpoint in enumerate(endpoints):
            holdings = self._holdings.get(endpoint.key)
            if holdings is not None:
                rows[holdings.slot] = row
        made = _RowsBySlot(rows)
        self._rows = [*self._rows[1 - _MAX_POOLS :], (endpoints, made)]
        return made

    def _add_endpoint(self, key: Key) -> Holdings:
        if not self._free:
            self._free.append(self._slots)
            self._slots += 1
        self._claims += 1  # claims on earlier holdings of this key have smaller numbers
        holdings = self._holdings[key] = Holdings(self._free.pop(), self._claims)
        self._rows.clear()
        # one endpoint more makes every share smaller
        limit = self._blocks_each()
        # seldom: else each of a thousand workers would be looked at a thousand times
        if self._largest > limit:
            for other in self._holdings.values():
                self._evict_for_memory(other, limit)
            self._largest = limit
        return holdings

    def _blocks_each(self) -> int:
        return self._max_blocks // len(self._holdings)

    def _evict_for_memory(self, holdings: Holdings, limit: int) -> None:
        self.evicted += max(0, holdings.count - limit)
        self._evict(holdings, limit)

    def _warn_of_memory(self, holdings: Holdings, capacity: int) -> None:
        """Once: prompts that a worker still holds are computed anew on others."""
        if self._is_crowded or not holdings.length:
            return
        self._is_crowded = True
        share, mebibytes = holdings.length / capacity, 1024 * 1024
        log.warning(
            "the prefix index forgets prompts that workers still hold: %d endpoints share its %d MiB, enough for about %d %% "
            "of a cache; set maxIndexBytes of approx-prefix-cache-producer to about %dMi, and give the picker that memory",
            len(self._holdings),
            self.max_bytes // mebibytes,
            100 * share,
            self.max_bytes / share // mebibytes + 1,
        )

    def _evict(self, holdings: Holdings, count: int, length: float = inf) -> None:
        self._clear_masks(holdings, holdings.evict(count, length))

    def _clear_masks(self, holdings: Holdings, blocks: Sequence[int]) -> None:
        """Remove the endpoint from the masks of these blocks."""
        masks, bit = self._masks, holdings.bit
        for block in blocks:
            holders = masks.pop(block)
            # `is`: most masks are the very object in `bit`, see _add_chain
            if holders is not bit and (others := holders & ~bit):
                masks[block] = others
