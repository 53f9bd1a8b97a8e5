"""Which endpoint holds which beginnings of prompts: what the picker believes to be in the workers' prefix caches.

A prompt is a chain of blocks. The name of a block is a hash of everything up to its end, so equal names mean equal
beginnings, and an endpoint that holds a block holds all those before it. That is kept true on the way out too: the
block that goes first never has a successor (holdings.py), as in a worker that frees the leaves of its cache
before the roots.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from math import inf
from typing import Final, TypeAlias

import numpy as np

from epp.endpoints.endpoint import Endpoint, Indices
from epp.scheduling.prefix.holdings import Holdings

Key: TypeAlias = tuple[str, str]
"""One life of one worker (`Endpoint.key`)."""

BLOCK_BYTES: Final = 600
"""Room for one block at one endpoint: up to 586 were measured where none follows another, about 120 where 70 do."""
MAX_BYTES: Final = 384 * 1024 * 1024
"""Of memory for one index; endpoints have equal parts of it."""

_MAX_CACHED_MASKS: Final = 64
"""Sets of endpoints that are kept."""
_FEW_HOLDERS: Final = 8
"""Endpoints up to which it is faster to take them one by one."""


class _RowsBySlot:
    """By slot the row of its endpoint in a pool, -1 where it is not there."""

    __slots__ = ("_array", "_arrays", "_list")

    def __init__(self, rows: list[int]) -> None:
        self._list = rows
        self._array = np.array(rows, dtype=np.intp)
        self._arrays: dict[int, Indices] = {}
        """By mask: those who share a popular beginning stay the same for many requests."""

    def row_list(self, mask: int) -> list[int]:
        """The rows that the bits of a mask stand for, bit by bit."""
        found = []
        while mask:
            lowest = mask & -mask
            row = self._list[lowest.bit_length() - 1]
            if row >= 0:
                found.append(row)
            mask ^= lowest
        return found

    def row_array(self, mask: int) -> Indices:
        """The same, all bits at once."""
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
    """Chains by endpoint, at most `max_bytes` of memory for all of them."""

    __slots__ = ("_claims", "_free", "_holdings", "_masks", "_max_blocks", "_rows", "_rows_pool", "_slots")

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_blocks = max_bytes // BLOCK_BYTES
        self._masks: dict[int, int] = {}
        """By block: the endpoints that hold it, as the bits of an integer."""
        self._holdings: OrderedDict[Key, Holdings] = OrderedDict()
        """Those that were written down last come last."""
        self._claims = 0
        self._free: list[int] = []
        self._slots = 0
        self._rows_pool: tuple[Endpoint, ...] = ()
        self._rows: _RowsBySlot | None = None
        """Where `_rows_pool` stand, those that were asked about last; None: to be found again."""

    def __len__(self) -> int:
        """Blocks, each counted once for every endpoint that holds it."""
        return sum(one.count for one in self._holdings.values())

    def match(self, chain: Sequence[int], endpoints: tuple[Endpoint, ...]) -> Indices | dict[int, int]:
        """How many blocks each endpoint holds from the chain's beginning on; where few do, those only, by row."""
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
                many[rows.row_array(mask)] = end  # of those that hold more the rest follows
            mask = longer
        return few if many is None else many

    def held(self, chain: Sequence[int], key: Key) -> int:
        """How many blocks one endpoint holds from the chain's beginning on."""
        holdings = self._holdings.get(key)
        return self._match_end(chain, 0, holdings.bit) if chain and holdings is not None else 0

    def record(
        self, chain: Sequence[int], key: Key, capacity: int, lengths: Sequence[int] | None = None
    ) -> None:
        """The endpoint holds this chain; of what it held before, as much is kept as is no longer than `capacity` in all.

        `lengths`: of the blocks of the chain, and maybe more; None: 1 each.
        """
        self._add_chain(chain, key, capacity, lengths, None)

    def claim(
        self, chain: Sequence[int], key: Key, capacity: int, lengths: Sequence[int] | None = None
    ) -> int:
        """As `record`, for a request that was sent there; what only claims are on goes when they are withdrawn."""
        if key not in self._holdings:
            self._add_endpoint(key)
        self._claims += 1
        self._add_chain(chain, key, capacity, lengths, self._claims)
        return self._claims

    def withdraw(self, chain: Sequence[int], key: Key, claim: int) -> None:
        """The endpoint did not serve the request that claimed this chain."""
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
        """The endpoint served the request that claimed this chain; nothing happens if it lost its cache since."""
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
        for block in holdings.add(chain, [1] * len(chain) if lengths is None else lengths, claim):
            others = masks.get(block)
            # most have one holder: they share its integer
            masks[block] = bit if others is None else others | bit
        limit = self._blocks_each()
        if holdings.count > limit or holdings.length > capacity:
            self._evict(holdings, limit, capacity)

    def forget(self, key: Key) -> None:
        """The endpoint holds nothing any more."""
        holdings = self._holdings.pop(key, None)
        if holdings is not None:
            self._evict(holdings, 0)
            self._free.append(holdings.slot)
            self._rows = None

    def retain(self, keys: Iterable[Key]) -> None:
        """These are there now. Others may come back: as many are kept, those that were written down last."""
        present = set(keys)
        if len(self._holdings) <= len(present):
            return
        absent = [key for key in self._holdings if key not in present]
        for key in absent[: max(0, len(absent) - len(present))]:
            self.forget(key)

    def _match_end(self, chain: Sequence[int], start: int, mask: int) -> int:
        """Where the part of the chain ends that all of `mask` hold; no mask has a bit that one before it has not."""
        get, low, high = self._masks.get, start, len(chain)
        if get(chain[-1], 0) & mask == mask:
            return high
        while low < high:
            middle = (low + high) // 2
            if get(chain[middle], 0) & mask == mask:
                low = middle + 1
            else:
                high = middle
        return low

    def _rows_of(self, endpoints: tuple[Endpoint, ...]) -> _RowsBySlot:
        if self._rows is None or endpoints is not self._rows_pool:
            rows = [-1] * self._slots
            for row, endpoint in enumerate(endpoints):
                holdings = self._holdings.get(endpoint.key)
                if holdings is not None:
                    rows[holdings.slot] = row
            self._rows_pool, self._rows = endpoints, _RowsBySlot(rows)
        return self._rows

    def _add_endpoint(self, key: Key) -> Holdings:
        if not self._free:
            self._free.append(self._slots)
            self._slots += 1
        self._claims += 1
        holdings = self._holdings[key] = Holdings(self._free.pop(), self._claims)
        self._rows = None
        limit = self._blocks_each()
        for other in self._holdings.values():
            self._evict(other, limit)
        return holdings

    def _blocks_each(self) -> int:
        return self._max_blocks // len(self._holdings)

    def _evict(self, holdings: Holdings, count: int, length: float = inf) -> None:
        """Until there are `count` blocks at most, and they are no longer than `length`."""
        self._clear_masks(holdings, holdings.evict(count, length))

    def _clear_masks(self, holdings: Holdings, blocks: Sequence[int]) -> None:
        """It does not hold these any more."""
        masks, bit = self._masks, holdings.bit
        for block in blocks:
            holders = masks.pop(block)
            if holders is not bit and (others := holders & ~bit):
                masks[block] = others
