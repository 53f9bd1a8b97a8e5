"""The data producer that learns which worker was sent which prompt, and so holds its blocks.

Names, parameters and values are those of the Go picker. There is no tokenizer: 4 bytes of the prompt, as JSON, count as
one token. An error in that ratio changes no match, only how much of a cache is believed to be full.
"""

from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

import numpy as np
from xxhash import xxh3_64_intdigest

from adsum.histogram import Histogram
from epp.endpoints.endpoint import Endpoint, EndpointPool, Floats
from epp.request.inference_request import TOKEN_BYTES, InferenceRequest, PrefixChain
from epp.scheduling.peer_pick import PeerPick
from epp.scheduling.pick import Credit
from epp.scheduling.prefix.index import Key, PrefixIndex
from epp.scheduling.prefix.runs import HASH_BYTES


class BlockEnds:
    """The ends of blocks in units, the length of the first block.

    A block is `grain` times shorter than the text before it, and at least one unit: the first 2 * `grain` units are one
    block each. The table is shared by all prompts and grows with the longest one seen.
    """

    def __init__(self, grain: int) -> None:
        self._grain = grain
        self.ends: list[int] = []

    def count(self, units: int) -> int:
        """The number of blocks of a prompt of that many units; extends `ends` as far as needed."""
        ends = self.ends
        while not ends or ends[-1] < units:
            before = ends[-1] if ends else 0
            ends.append(before + max(1, before // self._grain))
        return bisect_left(ends, units) + 1 if units else 0


RATIOS: Final[Sequence[float]] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""A Sequence: mypyc 2.4 takes a Final tuple that begins with floats for unset."""
BYTES: Final = (0, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)


class PrefixHits:
    """`ratios`: of the prompt; `bytes`: of its JSON. Buckets are the Go picker's. `credits`: by endpoint."""

    def __init__(self) -> None:
        self.ratios = Histogram(RATIOS)
        self.bytes = Histogram(BYTES)
        self.credits: dict[tuple[str, str], Credit] = {}

    def observe(self, key: tuple[str, str], held: int, total: int) -> None:
        """The worker was believed to hold the first `held` of `total` bytes. `key`: of its endpoint."""
        credit = self.credits.get(key)
        if credit is None:
            credit = self.credits[key] = Credit()
        credit.held += held
        credit.total += total
        self.bytes.observe(held)
        if total:
            self.ratios.observe(held / total)

    def retain(self, keys: Sequence[tuple[str, str]]) -> None:
        """Forget the credits of all other endpoints."""
        for key in self.credits.keys() - keys:
            del self.credits[key]


PRODUCER: Final = "approx-prefix-cache-producer"
MIN_BLOCK_TOKENS: Final = 64
"""The smallest block that a configuration gets: smaller ones cost more hashes and memory than their precision is worth."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class PrefixCacheProducer:
    """Hashes the blocks of each prompt, and records in the index which endpoint it went to.

    An endpoint is credited at the pick, and the claim is withdrawn unless it serves the request (index.py says why).

    `block_tokens`: tokens of one unit, the shortest block; `max_blocks` and `capacity` count units. `max_tokens`, or if
    that is 0 `max_blocks`: how much of a prompt is hashed, 0: all. `capacity`: units that one endpoint is believed to
    hold; with `auto_tune`, the size of its cache instead, if its metrics page has it. `grain`: of BlockEnds, each block
    is at most so many times shorter than the text before it. `seed`: random for each picker, so that nobody can prepare
    prompts whose hashes collide: xxHash is no cryptographic hash.
    """

    block_tokens: int = MIN_BLOCK_TOKENS
    max_tokens: int = 0
    max_blocks: int = 0
    capacity: int = 7812
    auto_tune: bool = True
    grain: int = 16
    seed: int = 0
    index: PrefixIndex = field(default_factory=PrefixIndex, repr=False)
    hits: PrefixHits = field(default_factory=PrefixHits, repr=False)
    _block_ends: BlockEnds = field(init=False, repr=False)
    _block_bytes: int = field(init=False, repr=False)
    """Bytes of one unit."""
    _max_bytes: int | None = field(init=False, repr=False)
    """Bytes of the prompt that are hashed; None: all."""
    _capacities: dict[Key, int] = field(init=False, repr=False, default_factory=dict)
    """Units by endpoint, of those whose metrics page has the size of the cache."""

    def __post_init__(self) -> None:
        size = self.block_tokens * TOKEN_BYTES
        max_blocks = max(self.max_tokens // self.block_tokens, 1) if self.max_tokens else self.max_blocks
        object.__setattr__(self, "_block_ends", BlockEnds(self.grain))
        object.__setattr__(self, "_block_bytes", size)
        object.__setattr__(self, "_max_bytes", max_blocks * size if max_blocks else None)

    def prepare(self, request: InferenceRequest, pool: EndpointPool) -> None:
        """Hash the blocks of the prompt; the last one may be short.

        The chain starts with what must be equal for a cache to be shared: model, cache salt and tools. vLLM mixes LoRA ids
        and cache salts into its hashes in the same place ("extra hashes").
        """
        if request.prompt is None:
            return
        size = self._block_bytes
        text = request.prompt.prefix(self._max_bytes)
        units = (len(text) + size - 1) // size
        block_ends = self._block_ends
        count = block_ends.count(units)
        digest = xxh3_64_intdigest
        block, start, blocks = digest(request.prompt.extra_key(), self.seed), 0, []
        for end in block_ends.ends[:count]:
            block = digest(text[start : end * size], block)
            blocks.append(block)
            start = end * size
        request.prefixes[self] = PrefixChain(blocks, self.block_tokens, units, block_ends.ends)

    @property
    def layout(self) -> int:
        return xxh3_64_intdigest(f"{self.block_tokens} {self.grain} {self.seed}".encode(), 0)

    def use_seed(self, seed: int) -> None:
        if seed != self.seed:
            object.__setattr__(self, "seed", seed)
            self.index.retain(())

    def hashes(self, pick: PeerPick) -> Sequence[int]:
        """The hashes of its prompt's blocks; none: they are not known, or are others than ours."""
        is_alike = self._block_ends.count(pick.units) * HASH_BYTES == len(pick.blocks)
        return array("Q", pick.blocks) if is_alike else ()

    @property
    def ends(self) -> Sequence[int]:
        """The ends of the blocks of each prompt, in units."""
        return self._block_ends.ends

    def peers_picked(self, picks: Sequence[PeerPick], pool: EndpointPool) -> None:
        layout, index, ends = self.layout, self.index, self._block_ends.ends
        for pick in picks:
            if pick.layout != layout or not (hashes := self.hashes(pick)):
                continue
            claims: dict[Key, int] = {}
            for endpoint in pick.endpoints:
                key = endpoint.key
                if key not in claims:
                    capacity = self._capacities.get(key, self.capacity)
                    claims[key] = index.claim(hashes, key, capacity, ends, tracked=True)
            pick.data[self] = claims

    def peer_served(self, pick: PeerPick) -> None:
        claims = cast("dict[Key, int] | None", pick.data.get(self))
        if claims is None:
            return
        for endpoint in pick.endpoints:
            claim = claims.pop(endpoint.key, None)
            if claim is None:
                capacity = self._capacities.get(endpoint.key, self.capacity)
                self.index.record(self.hashes(pick), endpoint.key, capacity, self._block_ends.ends)
            else:
                self.index.confirm_tracked(endpoint.key, claim)
        if claims:  # of an endpoint that was picked, but another one served
            self.peer_failed(pick)

    def peer_failed(self, pick: PeerPick) -> None:
        claims = cast("dict[Key, int] | None", pick.data.get(self))
        if claims:
            hashes = self.hashes(pick)
            for key, claim in claims.items():
                self.index.withdraw(hashes, key, claim)

    def picked(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> None:
        """The workers will hold the prompt unless the request fails: claim it for them."""
        prefix = request.prefixes.get(self)
        if prefix is None:
            return
        claims = prefix.claims
        for endpoint in endpoints:
            key = endpoint.key
            if key not in claims:
                chosen = not claims
                capacity = self._capacities.get(key, self.capacity)
                claims[key] = self.index.claim(prefix.hashes, key, capacity, prefix.ends)
                held = prefix.units_in(self.index.held_before)
                prefix.held = (*prefix.held, held)
                if chosen:
                    size = self._block_bytes
                    self.hits.observe(key, held * size, prefix.units * size)

    def served(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> None:
        """The workers hold the prompt: confirm their claims, or record it for workers that had none."""
        prefix = request.prefixes.get(self)
        if prefix is None:
            return
        claims = prefix.claims
        for endpoint in endpoints:
            key = endpoint.key
            capacity, claim = self._capacities.get(key, self.capacity), claims.pop(key, None)
            if claim is None:
                self.index.record(prefix.hashes, key, capacity, prefix.ends)
            else:
                self.index.confirm(prefix.hashes, key, claim, capacity, prefix.ends)
        if claims:  # of an endpoint that was picked, but another one served
            self.failed(request)

    def failed(self, request: InferenceRequest) -> None:
        """Withdraw the claims of the pick; what other requests confirmed stays."""
        prefix = request.prefixes.get(self)
        if prefix is None:
            return
        for key, claim in prefix.claims.items():
            self.index.withdraw(prefix.hashes, key, claim)
        prefix.claims.clear()

    def held(self, request: InferenceRequest, endpoint: Endpoint) -> int:
        """Tokens of the prompt's beginning that the endpoint is believed to hold; 0 if `prepare` saw no prompt."""
        prefix = request.prefixes.get(self)
        if prefix is None:
            return 0
        return prefix.units_in(self.index.held(prefix.hashes, endpoint.key)) * prefix.unit_tokens

    def chain(self, request: InferenceRequest) -> PrefixChain | None:
        return request.prefixes.get(self)

    def matches(self, request: InferenceRequest, pool: EndpointPool) -> Mapping[int, int] | Floats:
        prefix = request.prefixes.get(self)
        if prefix is None:
            return {}
        matched = self.index.match(prefix.hashes, pool.endpoints)
        if isinstance(matched, dict):
            return {row: prefix.units_in(count) for row, count in matched.items()}
        # the units of each possible number of blocks, then one lookup for all endpoints
        units = np.array([0.0, *prefix.ends[: len(prefix.hashes)]])
        units[-1] = prefix.units
        held: Floats = units[matched]
        return held

    @property
    def credits(self) -> Mapping[Key, Credit]:
        return self.hits.credits

    @property
    def plugin_type(self) -> str:
        return PRODUCER

    @property
    def picked_last(self) -> bool:  # a class attribute of a compiled dataclass would be one of its fields
        return True

    def sized(self, endpoint: Endpoint, tokens: int) -> None:
        """Its cache has room for so many tokens: believe it to hold no more."""
        if self.auto_tune:
            self._capacities[endpoint.key] = tokens // self.block_tokens
            self.index.warn_if_too_small(sum(self._capacities.values()), len(self._capacities))

    def forget(self, endpoint: Endpoint) -> None:
        self.index.forget(endpoint.key)

    def retain(self, endpoints: Sequence[Endpoint]) -> None:
        present = [endpoint.key for endpoint in endpoints]
        self.index.retain(present)
        self.hits.retain(present)
        for key in self._capacities.keys() - present:
            del self._capacities[key]
