"""Maps prompt prefixes to the endpoints believed to hold them in their prefix caches.

A prompt is a chain of block hashes. Each hash covers the parent's hash and the block, as in vLLM (docs.vllm.ai, Automatic
Prefix Caching): equal hashes mean equal prompts up to there. KV values depend on all tokens before them, so a block is of
use only after the same prefix; a hash of the block alone would match text in the wrong place.

Blocks are kept in runs (runs.py), each once for all endpoints that hold it; every endpoint has its own order of them
(holdings.py). An endpoint that holds a run holds all runs before it, and eviction keeps that true. So the endpoints that
hold the runs of a chain become fewer from run to run, and one walk along the chain finds where each of them ends. The
endpoints of a run are the bits of one integer, so one operation intersects them all.

It is a belief, not a copy: no worker reports its cache. A chain is claimed at the pick, not at the answer. If answers are
not streamed, response headers come with the end of the answer; an index that learns only then has
the same prefix computed on every worker meanwhile (time to first token 13.85 s instead of 0.64 s, benchmarks/routing/README.md). A claim is confirmed
when the worker answers with 2xx, and withdrawn when it does not.
"""

import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import numpy as np

from epp.endpoints.endpoint import Endpoint, Indices
from epp.scheduling.prefix.holdings import HOLD_BYTES, NO_CLAIM, Holdings
from epp.scheduling.prefix.runs import HASH_BYTES, NO_RUN, RUN_BYTES, Chain, RunTable

log = logging.getLogger(__name__)

Key: TypeAlias = tuple[str, str]
"""`Endpoint.key`. A new incarnation is another key, since its cache starts empty."""

MAX_BYTES: Final = 384 * 1024 * 1024
"""Memory of one index whose maker says no other."""
UNIT_BYTES: Final = 40
"""Memory of one unit of one endpoint's cache if prompts have a thousand tokens in units of 64 and share nothing. It is less if
they are longer or share a beginning."""

_MEBIBYTE: Final = 1024 * 1024
_MAX_POOLS: Final = 4
"""Sets of endpoints whose rows are kept: all of them, those with fresh numbers, subsets of the requests of the moment."""
_MAX_CACHED_MASKS: Final = 64
"""Sets of endpoints whose rows are cached."""
_FEW_HOLDERS: Final = 8
"""Up to this many endpoints a loop over bits is faster than numpy."""
_MERGE_FROM: Final = 8
"""A prompt that uses more runs than this gets them merged, as far as they are used alike."""
_DROPPED_AT_ONCE: Final = 8
"""Runs of endpoints that were forgotten, dropped with each chain that is added."""


class _RowsBySlot:
    """The row in a pool of the endpoint in each slot, -1 if the pool lacks it."""

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
    """Block hashes by endpoint, in at most `max_bytes` of memory, as far as that can be estimated.

    `chain`: the block hashes of one prompt, 64 bits each. `ends`: of the blocks in units, the same table for all chains of
    an index, which may go on behind the chain; None: each block is one unit. `capacity`: units of one endpoint's cache.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.evicted = 0
        """Blocks that were forgotten for want of memory, though the endpoint's cache has room for them."""
        self.held_before = 0
        """How many leading blocks of the last chain that was claimed or recorded its endpoint held already."""
        self._is_crowded = False
        self._expected = 0
        """The last size of all caches that was warned of, in units."""
        self._runs = RunTable()
        self._holds = 0
        """Pairs of a run and an endpoint that holds it."""
        self._shared = 0
        """Runs that several endpoints hold."""
        self._holdings: OrderedDict[Key, Holdings] = OrderedDict()
        """Least recently updated first."""
        self._by_slot: list[Holdings] = []
        """Also those that are leaving, and what was in slots that are free."""
        self._lengths = np.zeros(64, dtype=np.int64)
        """Units that the endpoint in each slot holds."""
        self._leaving: list[Holdings] = []
        """They belonged to endpoints that were forgotten: given up little by little, and found by nobody meanwhile."""
        self._free: list[int] = []
        self._claims = NO_CLAIM
        self._chain = Chain(())
        """The last one: a pick asks for the same chain several times."""
        self._rows: list[tuple[tuple[Endpoint, ...], _RowsBySlot]] = []
        """The endpoints of the last matches, the latest last, and their rows."""

    def __len__(self) -> int:
        """The number of blocks, each counted once for every endpoint that holds it."""
        return sum([one.count for one in self._holdings.values()])

    @property
    def used_bytes(self) -> int:
        """Bytes of memory, estimated from how many runs, blocks and holders there are."""
        # an integer has 30 bits in 4 bytes; that of a run with one holder is the one in `Holdings.bit`
        mask_bytes = 32 + len(self._by_slot) * 2 // 15
        runs = self._runs
        return (
            runs.count * RUN_BYTES
            + runs.blocks * HASH_BYTES
            + self._holds * HOLD_BYTES
            + self._shared * mask_bytes
        )

    def warn_if_too_small(self, capacity: int, endpoints: int) -> None:
        """The caches of so many endpoints have room for so many units: warn if the index has not.

        Sizes come one by one at the start: warn again only of twice as many.
        """
        if capacity * UNIT_BYTES <= self.max_bytes or capacity < 2 * self._expected:
            return
        self._expected = capacity
        log.warning(
            "the caches of %d endpoints hold more than the prefix index remembers in its %d MiB: about %d %% of them if prompts "
            "have a thousand tokens and share nothing, more if they are longer; for all of them set maxIndexBytes of "
            "approx-prefix-cache-producer to %dMi, and give the picker that memory",
            endpoints,
            self.max_bytes // _MEBIBYTE,
            100 * self.max_bytes // (capacity * UNIT_BYTES),
            capacity * UNIT_BYTES // _MEBIBYTE + 1,
        )

    def match(self, chain: Sequence[int], endpoints: tuple[Endpoint, ...]) -> Indices | dict[int, int]:
        """The number of leading blocks of the chain that each endpoint holds.

        A column over the endpoints, or if only a few hold any, those by row.
        """
        asked, runs = self._chain_with_runs(chain), self._runs
        if not asked.runs:
            return {}
        rows = self._rows_of(endpoints)
        masks = [runs.holders[run] for run in asked.runs]  # endpoints only become fewer from run to run
        if masks[0].bit_count() > _FEW_HOLDERS:
            many = np.zeros(len(endpoints), dtype=np.intp)
            for at, mask in enumerate(masks):
                if at + 1 == len(masks) or mask != masks[at + 1]:
                    many[rows.row_array(mask)] = asked.ends[at]  # those that hold more are overwritten
            return many
        few: dict[int, int] = {}
        masks.append(0)
        for at, end in enumerate(asked.ends):
            if mask := masks[at] & ~masks[at + 1]:
                for row in rows.row_list(mask):
                    few[row] = end
        return few

    def held(self, chain: Sequence[int], key: Key) -> int:
        """The number of leading blocks of the chain that one endpoint holds."""
        holdings = self._holdings.get(key)
        if holdings is None:
            return 0
        asked, known = self._chain_with_runs(chain), 0
        for run, end in zip(asked.runs, asked.ends, strict=True):
            if run not in holdings:
                break
            known = end
        return known

    def record(
        self, chain: Sequence[int], key: Key, capacity: int, ends: Sequence[int] | None = None
    ) -> None:
        """The endpoint holds this chain: a worker has served it. Evicts older blocks beyond `capacity`."""
        self._add_chain(chain, key, capacity, ends, NO_CLAIM)

    def claim(
        self,
        chain: Sequence[int],
        key: Key,
        capacity: int,
        ends: Sequence[int] | None = None,
        *,
        tracked: bool = False,
    ) -> int:
        """The endpoint will hold this chain, because a request was sent there. Returns the claim's number.

        Like `record`, but blocks that nothing else confirms are removed when the last claim on them is withdrawn. `tracked`:
        `confirm_tracked` may confirm it.
        """
        holdings = self._holdings.get(key)
        if holdings is None:
            holdings = self._add_endpoint(key)
        self._claims += 1
        if tracked:
            holdings.track(self._claims)
        self._add_chain(chain, key, capacity, ends, self._claims)
        return self._claims

    def withdraw(self, chain: Sequence[int], key: Key, claim: int) -> None:
        """The endpoint did not serve the request that made this claim."""
        holdings = self._holdings.get(key)
        if holdings is None:
            return
        holdings.untrack(claim)
        for run in self._chain_with_runs(chain).runs:
            if run not in holdings:
                break
            if holdings.claimed_by(run, claim) and holdings.withdraw(run, claim):
                self._drop(holdings, run)
        self._lengths[holdings.slot] = holdings.length

    def confirm(
        self, chain: Sequence[int], key: Key, claim: int, capacity: int, ends: Sequence[int] | None = None
    ) -> None:
        """The endpoint served the request that made this claim. Ignored if the endpoint was forgotten since: its cache is new."""
        holdings = self._holdings.get(key)
        if holdings is None or holdings.created_at >= claim:
            return
        asked = self._chain_with_runs(chain)
        is_whole = asked.size == (asked.ends[-1] if asked.ends else 0)
        if not (is_whole and holdings.confirm(asked.runs, claim)):  # part of it was evicted meanwhile
            self._add_chain(chain, key, capacity, ends, NO_CLAIM)

    def confirm_tracked(self, key: Key, claim: int) -> None:
        """The endpoint served the request that made this claim, which is `tracked`. Unlike `confirm` it does not walk the chain,
        nor bring back what was evicted meanwhile.
        """
        holdings = self._holdings.get(key)
        if holdings is not None:
            holdings.confirm_tracked(claim)

    def forget(self, key: Key) -> None:
        """Drop what is known of an endpoint: its cache is gone."""
        holdings = self._holdings.pop(key, None)
        if holdings is not None:
            self._lengths[holdings.slot] = 0
            self._leaving.append(holdings)
            self._rows.clear()

    def retain(self, keys: Iterable[Key]) -> None:
        """Keep these endpoints, and as many absent ones, the most recently updated: a worker may be away for a moment only."""
        present = set(keys)
        if len(self._holdings) <= len(present):
            return
        absent = [key for key in self._holdings if key not in present]
        for key in absent[: max(0, len(absent) - len(present))]:
            self.forget(key)

    def _chain_with_runs(self, chain: Sequence[int]) -> Chain:
        """The chain with its runs."""
        if self._chain.hashes is not chain:
            self._chain = Chain(chain)
        self._runs.walk(self._chain)
        return self._chain

    def _add_chain(
        self, chain: Sequence[int], key: Key, capacity: int, ends: Sequence[int] | None, claim: int
    ) -> None:
        holdings = self._holdings.get(key)
        if holdings is None:
            holdings = self._add_endpoint(key)
        self._holdings.move_to_end(key)
        holdings.capacity = capacity
        if ends is not None:
            self._runs.ends = ends
        is_larger = self._use(holdings, self._chain_with_runs(chain), claim)
        if holdings.length > capacity:
            self._evict(holdings)
        if self._leaving:
            self._drop_forgotten()
        if is_larger:
            self._lengths[holdings.slot] = holdings.length
            if self.used_bytes > self.max_bytes:
                self._save_memory()

    def _use(self, holdings: Holdings, chain: Chain, claim: int) -> bool:
        """Make the endpoint hold the chain; returns whether that takes memory."""
        used, known = chain.runs, chain.ends[-1] if chain.ends else 0
        for at in chain.parted:  # this prompt parts from the run inside it
            self._divide(used[at], chain.ends[at] - (chain.ends[at - 1] if at else 0))
        if known < chain.size:
            used = [*used, self._runs.add(chain.packed()[known * HASH_BYTES :], known, 0)]
        held = holdings.use(used, claim)
        self.held_before = chain.ends[held - 1] if held else 0
        self._add_holder(holdings, used[held:])
        if held < len(used) > _MERGE_FROM:
            self._merge(used)
        return held < len(used) or bool(chain.parted)

    def _add_holder(self, holdings: Holdings, new: Sequence[int]) -> None:
        """The endpoint began to hold these runs."""
        runs, bit = self._runs, holdings.bit
        masks, lengths = runs.holders, runs.lengths
        for run in new:
            holders = masks[run]
            # `bit` itself, where it is the only holder: an integer for each run would take memory
            masks[run] = holders | bit if holders else bit
            if holders and not holders & (holders - 1):
                self._shared += 1
            holdings.count += runs.size(run)
            holdings.length += lengths[run]
        self._holds += len(new)

    def _drop(self, holdings: Holdings, run: int) -> None:
        """The endpoint holds the run no longer. Nobody holds a run after it."""
        runs = self._runs
        holdings.count -= runs.size(run)
        holdings.length -= runs.lengths[run]
        holdings.drop(run)
        self._holds -= 1
        left = runs.holders[run] ^ holdings.bit
        if not left:
            runs.remove(run)
            return
        runs.holders[run] = left
        if not left & (left - 1):
            self._shared -= 1

    def _divide(self, run: int, size: int) -> int:
        """Split the run after so many blocks; returns the run of the others."""
        rest = self._runs.divide(run, size)
        holders = self._holders(run)
        for holdings in holders:
            holdings.divide(run, rest)
        self._holds += len(holders)
        if len(holders) > 1:
            self._shared += 1
        return rest

    def _merge(self, used: Sequence[int]) -> None:
        """Join consecutive runs that are used alike: a conversation of many turns adds one a turn."""
        first, masks, by_slot = used[0], self._runs.holders, self._by_slot
        for run in used[1:]:
            mask, joins = masks[first], masks[first] == masks[run]
            while mask and joins:  # a beginning may have many holders, most of which say no at once
                lowest = mask & -mask
                joins = by_slot[lowest.bit_length() - 1].follows(first, run)
                mask ^= lowest
            if joins:
                holders = self._holders(first)
                for holdings in holders:
                    holdings.drop(run)
                self._holds -= len(holders)
                if len(holders) > 1:
                    self._shared -= 1
                self._runs.join(first, run)
            else:
                first = run

    def _holders(self, run: int) -> list[Holdings]:
        mask = self._runs.holders[run]
        found: list[Holdings] = []
        while mask:
            lowest = mask & -mask
            found.append(self._by_slot[lowest.bit_length() - 1])
            mask ^= lowest
        return found

    def _evict(self, holdings: Holdings) -> None:
        """Forget the blocks that were not used for longest, until the others fit into the endpoint's cache."""
        runs = self._runs
        while (excess := holdings.length - holdings.capacity) > 0 and (run := holdings.oldest()) != NO_RUN:
            length = runs.lengths[run]
            stay = runs.blocks_within(run, length - excess) if length > excess else 0
            if stay == 0:
                self._drop(holdings, run)
            elif runs.holders[run] == holdings.bit:
                holdings.count -= runs.size(run) - stay
                runs.truncate(run, stay)
                holdings.length -= length - runs.lengths[run]
            else:
                self._drop(holdings, self._divide(run, stay))
        self._lengths[holdings.slot] = holdings.length

    def _drop_forgotten(self) -> None:
        """Drop some runs of endpoints that were forgotten, more than one chain brings: an endpoint may have thousands."""
        leaving = self._leaving[-1]
        for _ in range(_DROPPED_AT_ONCE):
            run = leaving.oldest()
            if run == NO_RUN:
                self._leaving.pop()
                self._free.append(leaving.slot)  # reused, so that masks stay short
                return
            self._drop(leaving, run)

    def _save_memory(self) -> None:
        """Forget until the rest fits: first what nobody asks for, then the oldest of the endpoint that has most.

        So endpoints have equal shares of the memory as far as they need them, and a busy one cannot evict what others hold.
        """
        while self._leaving and self.used_bytes > self.max_bytes:
            self._drop_forgotten()
        while self.used_bytes > self.max_bytes:
            holdings = self._by_slot[int(self._lengths.argmax())]
            run = holdings.oldest()
            if run == NO_RUN:
                return
            self._warn_of_memory(holdings)
            self.evicted += self._runs.size(run)
            self._drop(holdings, run)
            self._lengths[holdings.slot] = holdings.length

    def _warn_of_memory(self, holdings: Holdings) -> None:
        """Once: prompts that a worker still holds are computed anew on others."""
        if self._is_crowded:
            return
        self._is_crowded = True
        share = max(1, holdings.length) / max(1, holdings.capacity)
        log.warning(
            "the prefix index forgets prompts that workers still hold: %d endpoints share its %d MiB, enough for about %d %% "
            "of a cache; set maxIndexBytes of approx-prefix-cache-producer to about %dMi, and give the picker that memory",
            len(self._holdings),
            self.max_bytes // _MEBIBYTE,
            100 * share,
            self.max_bytes / share // _MEBIBYTE + 1,
        )

    def _rows_of(self, endpoints: tuple[Endpoint, ...]) -> _RowsBySlot:
        # the same endpoints come as the same tuple until one of them changes, so identity is enough
        for known, found in reversed(self._rows):
            if known is endpoints:
                return found
        rows = [-1] * len(self._by_slot)
        for row, endpoint in enumerate(endpoints):
            holdings = self._holdings.get(endpoint.key)
            if holdings is not None:
                rows[holdings.slot] = row
        made = _RowsBySlot(rows)
        self._rows = [*self._rows[1 - _MAX_POOLS :], (endpoints, made)]
        return made

    def _add_endpoint(self, key: Key) -> Holdings:
        self._claims += 1  # claims on earlier holdings of this key have smaller numbers
        slot = self._free.pop() if self._free else len(self._by_slot)
        holdings = self._holdings[key] = Holdings(slot, self._claims)
        if slot < len(self._by_slot):
            self._by_slot[slot] = holdings
        else:
            self._by_slot.append(holdings)
        if slot >= len(self._lengths):
            self._lengths = np.append(self._lengths, np.zeros_like(self._lengths))
        self._rows.clear()
        return holdings
