"""The blocks that workers say their prefix caches hold, each stored once for all workers that hold it. Pure.

A worker's hashes are only its names for blocks: versions, settings and engines hash differently. So a block has a key of our
own, made of its tokens and of all that comes before them (adapter, salt, the blocks from the prompt's beginning on, extra
keys). A prompt's tokens give the same keys. Its seed is random, so that nobody can prepare two blocks with one key.

The workers that hold a block are the bits of one integer. A worker that cleared its cache gets another bit; its old one is
taken off the blocks little by little, and what was noted beside it is let go in steps, because a worker may hold a million.

References are counted as vLLM defines them (docs/design/kv_cache_events): for each medium, group, locality and ownership a
store adds one, a removal takes one, and a removal of what is not there is nothing. Nearly every block has one reference, so
only others are written down.
"""

from array import array
from collections.abc import Iterable
from typing import Final

from xxhash import xxh3_64_intdigest

from epp.scheduling.kv_events.batches import (
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    KvEvent,
    Scope,
    Steps,
    is_local,
)
from epp.scheduling.kv_events.cache_holdings import CacheHoldings, ClearedHoldings, is_whole
from epp.scheduling.kv_events.snapshot import HeldBlocks

MOST_BLOCKS: Final = 4_000_000
LEAST_BLOCK_TOKENS: Final = 8
"""Shorter blocks (SGLang's page of one token) would cost more memory and time than they are worth."""
BLOCK_BYTES: Final = 250
"""Memory of one block, whoever holds it. Measured: tests/epp/scheduling/kv_events/test_cache_index.py."""
_SWEPT: Final = 256
"""Blocks that each applied batch looks at while a bit has to be taken off."""
_SCANNED: Final = 8192
"""Rows that are looked at in one go."""
_PIECE: Final = 256
"""Blocks that are applied in one go."""
_NO_ROW: Final = -1
_MOST_GROUPS: Final = 64
"""Groups of a hybrid model; vLLM makes a handful."""
_MOST_ADAPTERS: Final = 4096
_SPARE_ALIASES: Final = 4096
_MOST_NAMES: Final = 8
"""Names of each block that one publisher holds; an engine has one. With more all that it holds is forgotten."""


class CacheIndex:
    """At most `most_blocks` blocks; what comes beyond is refused, so a worker holds more than is known, never less."""

    def __init__(self, most_blocks: int = MOST_BLOCKS, seed: int = 0) -> None:
        self.most_blocks = most_blocks
        self._seed = seed
        self._rows: dict[int, int] = {}
        """Returns by key how often each scope refers to the block."""
        self._named: dict[int, int] = {}
        """By the name that the first publisher gave it."""
        self._keys, self._names = array("Q"), array("Q")
        self._holders: list[int] = []
        self._pinned: dict[int, int] = {}
        """How many publishers have references to a row and do not hold it whole."""
        self._free_rows: list[int] = []
        self._free_bits: list[int] = []
        self._bits = 0
        self._retired = 0
        self._sweeping = 0
        self._swept_to = 0
        # bounded: `apply` empties it, and only what it stores comes here
        self._cleared: list[ClearedHoldings] = []
        self.adapters: dict[str, None] = {}
        """Names of adapters that blocks were stored for, the latest last."""

        self.state = 0
        """Another number whenever publishers, their bits or what is known of them changed."""

    def changed(self) -> None:
        self.state += 1

    def __len__(self) -> int:
        """The number of blocks."""
        return len(self._rows)

    @property
    def used_bytes(self) -> int:
        """Memory of the blocks, estimated: `BLOCK_BYTES` each, however many workers hold one."""
        return len(self._rows) * BLOCK_BYTES

    def add_publisher(self) -> CacheHoldings:
        self.changed()
        return CacheHoldings(self._new_bit())

    def clear(self, holdings: CacheHoldings) -> None:
        """It holds nothing any more."""
        self.changed()
        if holdings.count:
            self._retired |= holdings.bit
            holdings.bit = self._new_bit()
        noted = holdings.clear()
        if noted.references or noted.aliases or noted.renamed:
            self._cleared.append(noted)

    def remove_publisher(self, holdings: CacheHoldings) -> None:
        self.clear(holdings)
        self._free_bits.append(holdings.bit)
        holdings.bit = 0

    def apply(self, holdings: CacheHoldings, events: Iterable[KvEvent]) -> Steps[None]:
        """If it is not gone on with, some of the events count and some do not: then `clear`."""
        for event in events:
            yield
            match event:
                case BlocksStored():
                    yield from self._store(holdings, event)
                case BlocksRemoved():
                    yield from self._remove_all(holdings, event)
                case BlocksCleared():
                    self.clear(holdings)
        while self._cleared:
            yield
            self._let_go()
        if self._retired or self._sweeping:
            self._sweep()

    def held_by(self, holdings: CacheHoldings) -> Steps[HeldBlocks]:
        """All that it holds, to be handed to another index of the same seed. Nothing of it may be applied meanwhile; if it is
        cleared, this is a part.
        """
        names, keys = yield from self._names_of(holdings)
        ref_keys, ref_scopes, ref_counts = array("Q"), array("H"), array("I")
        scopes: dict[Scope, int] = {}
        references = holdings.references
        for at, (row, counts) in enumerate(references.items()):
            if at % _PIECE == 0:
                yield
                if holdings.references is not references:
                    break  # cleared meanwhile
            ref_keys.extend([self._keys[row]] * len(counts))
            ref_scopes.extend([scopes.setdefault(scope, len(scopes)) for scope in counts])
            ref_counts.extend(counts.values())
        state = holdings.block_tokens, holdings.first_scope, dict(holdings.needed_whole), list(scopes)
        return HeldBlocks(*state, names, keys, ref_keys, ref_scopes, ref_counts)

    def _names_of(self, holdings: CacheHoldings) -> "Steps[tuple[array[int], array[int]]]":
        """Returns the names of all blocks that it holds, and the keys beside them."""
        names, keys = array("Q"), array("Q")
        for row in range(len(self._holders)):
            if row % _SCANNED == 0:
                yield
            held = self._holders[row] & holdings.bit or row in holdings.references
            if held and (key := self._keys[row]) not in holdings.renamed:
                names.append(self._names[row])
                keys.append(key)
        aliases = holdings.aliases
        for at, (name, key) in enumerate(aliases.items()):
            if at % _PIECE == 0:
                yield
                if holdings.aliases is not aliases:
                    break  # cleared meanwhile
            if self._find(holdings, name) != _NO_ROW:
                names.append(name)
                keys.append(key)
        return names, keys

    def restore(self, holdings: CacheHoldings, held: HeldBlocks) -> Steps[None]:
        """Let a publisher that holds nothing hold these."""
        holdings.block_tokens, holdings.first_scope = held.block_tokens, held.first_scope
        holdings.needed_whole.update(held.needed_whole)
        references = yield from held.references()
        for at, (name, key) in enumerate(zip(held.names, held.keys, strict=True)):
            if at % _PIECE == 0:
                yield
            if len(self._rows) >= self.most_blocks and not (yield from self._make_room(key)):
                self._refuse(holdings, len(held.keys) - at)
                return
            row, counts = self._place(holdings, key, name), references.pop(key, None)
            if self._holders[row] & holdings.bit or row in holdings.references:
                continue  # by another name
            if counts is not None:
                holdings.references[row] = counts
            if counts is None or is_whole(holdings.needed_whole, counts):
                self._hold(holdings, row)
            else:
                self._pinned[row] = self._pinned.get(row, 0) + 1

    @property
    def layout(self) -> int:
        """Two indexes with the same one give blocks the same keys."""
        return self.root(None, "")

    def use_seed(self, seed: int) -> None:
        """While nothing is held: blocks have other keys from now on."""
        self._seed = seed

    def root(self, adapter: str | None, salt: str) -> int:
        """The key before a prompt's first block."""
        return xxh3_64_intdigest(f"{adapter or ''}\0\0{salt}".encode("utf-8", "surrogatepass"), self._seed)

    def match(self, tokens: bytes, root: int, among: int, block_tokens: int) -> dict[int, int]:
        """By bit, the leading blocks of the prompt that each of the publishers in the mask `among` holds; 0 is left out.

        `tokens`: 32 bits each, in the machine's order.
        """
        found: dict[int, int] = {}
        size, key, before = block_tokens * 4, root, among & ~self._retired & ~self._sweeping
        blocks = 0
        rows, holders = self._rows, self._holders
        while before:
            end = (blocks + 1) * size
            row = _NO_ROW
            if end <= len(tokens):
                key = xxh3_64_intdigest(tokens[blocks * size : end], key)
                row = rows.get(key, _NO_ROW)
            still = before & holders[row] if row != _NO_ROW else 0
            if still != before:
                if blocks:
                    for bit in _bits_of(before & ~still):
                        found[bit] = blocks
                before = still
            blocks += 1
        return found

    def holds(self, holdings: CacheHoldings, name: int) -> bool:
        """Whether the publisher holds the block that it calls so."""
        row = self._find(holdings, name)
        return row != _NO_ROW and bool(self._holders[row] & holdings.bit)

    def _store(self, holdings: CacheHoldings, event: BlocksStored) -> Steps[None]:
        scope = event.scope
        if not is_local(scope):  # nobody says when it is gone, and other workers may have it as near
            return
        if len(holdings.needed_whole) < _MOST_GROUPS:
            holdings.needed_whole.setdefault(scope[1], event.whole)
        if not (event.whole and event.tokens):
            yield from self._store_known(holdings, event)
        elif event.block_size < LEAST_BLOCK_TOKENS:
            self._refuse(holdings, len(event.hashes))
        elif (key := self._parent_key(holdings, event)) is None:
            if not holdings.orphans:
                self.changed()
            holdings.orphans += len(event.hashes)
        else:
            self._learn(holdings, event)
            yield from self._store_chain(holdings, event, key)

    def _store_known(self, holdings: CacheHoldings, event: BlocksStored) -> Steps[None]:
        """Blocks without tokens are in a further tier or group; only what is known can be there."""
        for at, name in enumerate(event.hashes):
            if at % _PIECE == _PIECE - 1:
                yield
            if (row := self._find(holdings, name)) != _NO_ROW:
                self._refer(holdings, row, event.scope)

    def _refuse(self, holdings: CacheHoldings, blocks: int) -> None:
        if not holdings.refused:
            self.changed()
        holdings.refused += blocks

    def _learn(self, holdings: CacheHoldings, event: BlocksStored) -> None:
        if not holdings.block_tokens:
            holdings.block_tokens = event.block_size
            self.changed()
        if event.adapter is not None and event.adapter not in self.adapters:
            self.adapters[event.adapter] = None
            if len(self.adapters) > _MOST_ADAPTERS:
                del self.adapters[next(iter(self.adapters))]

    def _parent_key(self, holdings: CacheHoldings, event: BlocksStored) -> int | None:
        if event.parent is None:
            return self.root(event.adapter, event.salt)
        row = self._find(holdings, event.parent)
        return None if row == _NO_ROW else self._keys[row]

    def _store_chain(self, holdings: CacheHoldings, event: BlocksStored, key: int) -> Steps[None]:
        packed, size = array("I", event.tokens).tobytes(), event.block_size * 4
        extras, scope = event.extras, event.scope
        for at, name in enumerate(event.hashes):
            if at % _PIECE == _PIECE - 1:
                yield
            block = packed[at * size : (at + 1) * size]
            if extras and extras[at]:
                block += b"\0" + extras[at]  # no block of tokens alone has such a length
            key = xxh3_64_intdigest(block, key)
            if len(self._rows) >= self.most_blocks and not (yield from self._make_room(key)):
                self._refuse(holdings, len(event.hashes) - at)
                return
            self._refer(holdings, self._place(holdings, key, name), scope)
        if len(holdings.aliases) > 2 * max(holdings.count, holdings.names_kept) + _SPARE_ALIASES:
            yield from self._forget_aliases(holdings)

    def _make_room(self, key: int) -> Steps[bool]:
        """For a block, if it is a further one."""
        while (full := key not in self._rows and len(self._rows) >= self.most_blocks) and (
            self._retired or self._sweeping
        ):
            self._sweep()
            yield
        return not full

    def _place(self, holdings: CacheHoldings, key: int, name: int) -> int:
        """The row of a block that the publisher calls so."""
        row = self._rows.get(key, _NO_ROW)
        if row == _NO_ROW:
            row = self._add_row(key, name)
        if self._names[row] != name or self._named.get(name) != row:
            holdings.aliases[name] = key
            holdings.renamed.add(key)
        return row

    def _add_row(self, key: int, name: int) -> int:
        if self._free_rows:
            row = self._free_rows.pop()
            self._keys[row], self._names[row], self._holders[row] = key, name, 0
        else:
            row = len(self._keys)
            self._keys.append(key)
            self._names.append(name)
            self._holders.append(0)
        self._rows[key] = row
        self._named.setdefault(name, row)
        return row

    def _find(self, holdings: CacheHoldings, name: int) -> int:
        """The block that the publisher calls so, if it has a reference to it."""
        key = holdings.aliases.get(name)
        row = self._named.get(name, _NO_ROW) if key is None else self._rows.get(key, _NO_ROW)
        if row == _NO_ROW or not (self._holders[row] & holdings.bit or row in holdings.references):
            return _NO_ROW
        if key is None and holdings.renamed and self._keys[row] in holdings.renamed:
            return _NO_ROW
        return row

    def _forget_aliases(self, holdings: CacheHoldings) -> Steps[None]:
        """Forget those of blocks that are gone: one with two names loses only the name that was removed last."""
        aliases, kept, renamed = holdings.aliases, dict[int, int](), set[int]()
        for at, (name, key) in enumerate(aliases.items()):
            if at % _PIECE == 0:
                yield
                if holdings.aliases is not aliases:
                    return  # cleared meanwhile
            if self._find(holdings, name) != _NO_ROW:
                kept[name] = key
                renamed.add(key)
        self._cleared.append(ClearedHoldings({}, aliases, holdings.renamed, {}))
        holdings.aliases, holdings.renamed = kept, renamed
        holdings.names_kept = len(kept)
        if len(kept) > _MOST_NAMES * (holdings.count + _SPARE_ALIASES):
            self.clear(holdings)
            self._refuse(holdings, 1)

    def _refer(self, holdings: CacheHoldings, row: int, scope: Scope) -> None:
        counts = holdings.references.get(row)
        if counts is None:
            if not self._holders[row] & holdings.bit:
                if holdings.first_scope is None:
                    holdings.first_scope = scope
                if scope == holdings.first_scope:
                    self._hold(holdings, row)
                    return
                counts = {}
            else:
                counts = {holdings.first_scope: 1} if holdings.first_scope is not None else {}
            holdings.references[row] = counts
            if not self._holders[row] & holdings.bit:
                self._pinned[row] = self._pinned.get(row, 0) + 1
        counts[scope] = counts.get(scope, 0) + 1
        if not self._holders[row] & holdings.bit and is_whole(holdings.needed_whole, (scope,)):
            self._hold(holdings, row)
            self._unpin(row)

    def _hold(self, holdings: CacheHoldings, row: int) -> None:
        self._holders[row] |= holdings.bit
        holdings.count += 1

    def _remove_all(self, holdings: CacheHoldings, event: BlocksRemoved) -> Steps[None]:
        if is_local(event.scope):
            for at, name in enumerate(event.hashes):
                if at % _PIECE == _PIECE - 1:
                    yield
                self._remove(holdings, name, event.scope)

    def _remove(self, holdings: CacheHoldings, name: int, scope: Scope) -> None:
        row = self._find(holdings, name)
        if row == _NO_ROW:
            return
        counts = holdings.references.get(row)
        if counts is None:
            if scope == holdings.first_scope:
                self._drop(holdings, row, name)
        elif scope in counts:
            counts[scope] -= 1
            if not counts[scope]:
                del counts[scope]
            self._after_removal(holdings, row, name, counts)

    def _after_removal(self, holdings: CacheHoldings, row: int, name: int, counts: dict[Scope, int]) -> None:
        """One of several references is gone; `counts`: those that are left."""
        held = bool(self._holders[row] & holdings.bit)
        if is_whole(holdings.needed_whole, counts):
            if (
                len(counts) == 1
                and holdings.first_scope is not None
                and counts.get(holdings.first_scope) == 1
            ):
                del holdings.references[row]
            return
        if not counts:
            del holdings.references[row]
            if not held:
                self._unpin(row)
        elif held:
            self._pinned[row] = self._pinned.get(row, 0) + 1
        if held:
            self._drop(holdings, row, name)

    def _drop(self, holdings: CacheHoldings, row: int, name: int) -> None:
        """It can use the block no longer."""
        self._holders[row] &= ~holdings.bit
        holdings.count -= 1
        if row not in holdings.references and holdings.aliases.pop(name, None) is not None:
            holdings.renamed.discard(self._keys[row])
        self._free_if_unused(row)

    def _unpin(self, row: int) -> None:
        left = self._pinned.get(row, 0) - 1
        if left > 0:
            self._pinned[row] = left
        else:
            self._pinned.pop(row, None)
            self._free_if_unused(row)

    def _free_if_unused(self, row: int) -> None:
        if self._holders[row] or row in self._pinned:
            return
        key, name = self._keys[row], self._names[row]
        del self._rows[key]
        if self._named.get(name) == row:
            del self._named[name]
        self._free_rows.append(row)

    def _let_go(self) -> None:
        """Let go of some more of what was noted of caches that were cleared."""
        references, aliases, renamed, needed_whole = self._cleared[-1]
        for _ in range(min(_PIECE, len(references))):
            row, counts = references.popitem()
            if not is_whole(needed_whole, counts):
                self._unpin(row)
        for _ in range(min(_PIECE, len(aliases))):
            aliases.popitem()
        for _ in range(min(_PIECE, len(renamed))):
            renamed.pop()
        if not (references or aliases or renamed):
            self._cleared.pop()

    def _new_bit(self) -> int:
        if self._free_bits:
            return self._free_bits.pop()
        self._bits += 1
        return 1 << (self._bits - 1)

    def _sweep(self) -> None:
        """Take the bits of caches that were cleared off some more blocks."""
        if not self._sweeping:
            self._sweeping, self._retired, self._swept_to = self._retired, 0, 0
        holders, keep = self._holders, ~self._sweeping
        end = min(self._swept_to + max(_SWEPT, len(holders) // 1024), len(holders))
        for row in range(self._swept_to, end):
            mask = holders[row]
            if mask & self._sweeping:
                holders[row] = mask & keep
                self._free_if_unused(row)
        self._swept_to = end
        if end == len(holders):
            self._free_bits += _bits_of(self._sweeping)
            self._sweeping = 0


def _bits_of(mask: int) -> list[int]:
    found = []
    while mask:
        lowest = mask & -mask
        found.append(lowest)
        mask ^= lowest
    return found
