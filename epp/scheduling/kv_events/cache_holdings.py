"""Keeps what one publisher said its cache holds, beside the blocks of the index: references, names, groups. Pure."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from epp.scheduling.kv_events.batches import Scope


class CacheHoldings:
    """Notes what one publisher said its cache holds: a worker, or one data-parallel rank of it.

    `bit`: in the masks of blocks. `block_tokens`: 0 until a block is known. `orphans`: blocks that could not be placed, since
    the block before them is unknown; `refused`: blocks for which there was no room.
    """

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.block_tokens = 0
        self.count = 0
        self.orphans = 0
        self.refused = 0
        self.first_scope: Scope | None = None
        """A block without an entry in `references` has one reference in this scope."""
        self.references: dict[int, dict[Scope, int]] = {}
        """By row, of blocks with any other references."""
        self.aliases: dict[int, int] = {}
        """Keys by this publisher's names, where another publisher gave the block another name, or the name to another block."""
        self.names_kept = 0
        """How many there were when those of blocks that are gone were forgotten last."""
        self.renamed: set[int] = set()
        """The keys of these: what others call these blocks means nothing here."""
        self.needed_whole: dict[int, bool] = {}
        """Whether every block of a group is needed, by group."""

    def clear(self) -> "ClearedHoldings":
        """It holds nothing any more; what was noted is to be let go."""
        noted = ClearedHoldings(self.references, self.aliases, self.renamed, self.needed_whole)
        self.references, self.aliases, self.renamed, self.needed_whole = {}, {}, set(), {}
        self.count = self.names_kept = self.orphans = self.refused = 0
        self.first_scope = None
        return noted


class ClearedHoldings(NamedTuple):
    """Keeps the notes on a cache that was cleared until they are let go."""

    references: dict[int, dict[Scope, int]]
    aliases: dict[int, int]
    renamed: set[int]
    needed_whole: dict[int, bool]


def is_whole(needed_whole: Mapping[int, bool], scopes: Iterable[Scope]) -> bool:
    """Whether one of these scopes is of a group whose every block is needed: then a request can use the block."""
    return any(needed_whole.get(scope[1], True) for scope in scopes)
