"""The prefix cache plugins: a data producer that learns which worker was sent which prompt, and a scorer of that.

Names, parameters and values are those of the Go picker. There is no tokenizer: 4 bytes of the prompt, as JSON, count as
one token. An error in that ratio changes no match, only how much of a cache is believed to be full.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from xxhash import xxh3_64_intdigest

from epp.endpoints.endpoint import Endpoint, EndpointPool, Floats
from epp.request.inference_request import TOKEN_BYTES, InferenceRequest, PrefixChain
from epp.scheduling.plugin import DataProducer, Scores
from epp.scheduling.prefix.blocks import BlockEnds
from epp.scheduling.prefix.hits import PrefixHits
from epp.scheduling.prefix.index import Key, PrefixIndex

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
        request.prefixes[self] = PrefixChain(
            blocks, self.block_tokens, units, block_ends.ends, block_ends.lengths
        )

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
                claims[key] = self.index.claim(prefix.hashes, key, capacity, prefix.lengths)
                if chosen:
                    size = self._block_bytes
                    held = prefix.units_in(self.index.held_before) * size
                    self.hits.observe(key, held, prefix.units * size)

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
                self.index.record(prefix.hashes, key, capacity, prefix.lengths)
            else:
                self.index.confirm(prefix.hashes, key, claim, capacity, prefix.lengths)
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

    def matched_units(self, request: InferenceRequest, pool: EndpointPool) -> Floats | None:
        """Units of the prompt's beginning that each endpoint is believed to hold; None if `prepare` saw no prompt."""
        prefix = request.prefixes.get(self)
        if prefix is None:
            return None
        matched = self.index.match(prefix.hashes, pool.endpoints)
        if isinstance(matched, dict):
            few = np.zeros(len(pool))
            for row, count in matched.items():
                few[row] = prefix.units_in(count)
            return few
        units = np.array([0.0, *prefix.ends[: len(prefix.hashes)]])
        units[-1] = prefix.units
        held: Floats = units[matched]
        return held

    @property
    def picked_last(self) -> bool:  # a class attribute of a compiled dataclass would be one of its fields
        return True

    def sized(self, endpoint: Endpoint, tokens: int) -> None:
        """Its cache has room for so many tokens: believe it to hold no more."""
        if self.auto_tune:
            self._capacities[endpoint.key] = tokens // self.block_tokens

    def forget(self, endpoint: Endpoint) -> None:
        self.index.forget(endpoint.key)

    def retain(self, endpoints: Sequence[Endpoint]) -> None:
        present = [endpoint.key for endpoint in endpoints]
        self.index.retain(present)
        self.hits.retain(present)
        for key in self._capacities.keys() - present:
            del self._capacities[key]

    def scorer(self, length_weight: float, length_scale: int) -> "PrefixCacheScorer":
        return PrefixCacheScorer(self, length_weight, length_scale)


@dataclass(frozen=True, slots=True)
class PrefixCacheScorer:
    """The share of the prompt, counted in blocks from its beginning, that the endpoint holds.

    `length_weight`: the part of the score, 0 to 1, that is instead the square of (tokens held / `length_scale`).
    """

    producer: PrefixCacheProducer
    length_weight: float = 0.0
    length_scale: int = 8192

    @property
    def published_only(self) -> bool:  # a class attribute of a compiled dataclass would be one of its fields
        return False

    @property
    def producers(self) -> tuple[DataProducer, ...]:
        return (self.producer,)

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Scores:
        prefix = request.prefixes.get(self.producer)
        if prefix is None:
            return {}
        matched = self.producer.index.match(prefix.hashes, pool.endpoints)
        if isinstance(matched, dict):
            return {row: self._score(prefix.units_in(count), prefix) for row, count in matched.items()}
        # the score of each possible number of blocks, then one lookup for all endpoints
        units = np.array([0, *prefix.ends[: len(prefix.hashes)]])
        units[-1] = prefix.units
        scores: Floats = self._score(units, prefix)[matched]
        return scores

    def _score(self, units: Any, prefix: PrefixChain) -> Any:
        """`units`: a number, or a column of numbers."""
        share = units / prefix.units
        if not self.length_weight:
            return share
        length = np.minimum(units * prefix.unit_tokens / self.length_scale, 1.0)
        return self.length_weight * length**2 + (1.0 - self.length_weight) * share
