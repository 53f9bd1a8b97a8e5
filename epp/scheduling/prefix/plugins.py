"""The prefix cache plugins: one says where a prompt's beginning is likely to be cached, the other what that is worth.

Names, parameters and values are those of the Go picker. There is no tokenizer: 4 bytes of a prompt, as it stands in
the request's JSON, count as a token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np
from xxhash import xxh3_64_intdigest

from epp.endpoints.endpoint import Endpoint, EndpointPool, Floats
from epp.request.inference_request import InferenceRequest, PrefixChain
from epp.scheduling.plugin import Scores
from epp.scheduling.prefix.blocks import BlockEnds
from epp.scheduling.prefix.index import Key, PrefixIndex

PRODUCER: Final = "approx-prefix-cache-producer"
MIN_BLOCK_TOKENS: Final = 64
"""Tokens in a block that a configuration can ask for: smaller ones cost more than they tell."""
_TOKEN_BYTES: Final = 4


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class PrefixCacheProducer:
    """Writes down which endpoint was sent which prompt, and names the blocks of each new one.

    Known at the pick, since the response headers of an answer that is not streamed come at its end; taken back where
    the request was not served.

    `block_tokens`: tokens in the shortest block, from which `max_blocks` and `capacity` are counted too. `max_tokens`, or
    where that is 0 `max_blocks`: how much of a prompt is looked at, 0: all. `capacity`: blocks that one endpoint is
    believed to hold; with `auto_tune`, one that says how large its cache is holds as much as that. `grain`: see
    BlockEnds. `seed` makes the hashes those of this picker, so that nobody can prepare prompts that collide.
    """

    block_tokens: int = MIN_BLOCK_TOKENS
    max_tokens: int = 0
    max_blocks: int = 0
    capacity: int = 7812
    auto_tune: bool = True
    grain: int = 16
    seed: int = 0
    index: PrefixIndex = field(default_factory=PrefixIndex, repr=False)
    _block_ends: BlockEnds = field(init=False, repr=False)
    _block_bytes: int = field(init=False, repr=False)
    """Bytes of the shortest block."""
    _max_bytes: int | None = field(init=False, repr=False)
    """Of a prompt, from its beginning on; None: all."""
    _capacities: dict[Key, int] = field(init=False, repr=False, default_factory=dict)
    """Blocks by endpoint, of those that said so."""

    def __post_init__(self) -> None:
        size = self.block_tokens * _TOKEN_BYTES
        max_blocks = max(self.max_tokens // self.block_tokens, 1) if self.max_tokens else self.max_blocks
        object.__setattr__(self, "_block_ends", BlockEnds(self.grain))
        object.__setattr__(self, "_block_bytes", size)
        object.__setattr__(self, "_max_bytes", max_blocks * size if max_blocks else None)

    def prepare(self, request: InferenceRequest, pool: EndpointPool) -> None:
        """Name the blocks of its prompt, the last one may be short; prompts of different models share none."""
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
        """The workers will have the prompt in their caches, unless the request fails."""
        prefix = request.prefixes.get(self)
        if prefix is None:
            return
        claims = prefix.claims
        for endpoint in endpoints:
            key = endpoint.key
            if key not in claims:
                capacity = self._capacities.get(key, self.capacity)
                claims[key] = self.index.claim(prefix.hashes, key, capacity, prefix.lengths)

    def served(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> None:
        """The workers have the prompt in their caches from now on."""
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
        if claims:
            self.failed(request)

    def failed(self, request: InferenceRequest) -> None:
        """What the pick had added goes; what was known before stays."""
        prefix = request.prefixes.get(self)
        if prefix is None:
            return
        for key, claim in prefix.claims.items():
            self.index.withdraw(prefix.hashes, key, claim)
        prefix.claims.clear()

    def sized(self, endpoint: Endpoint, tokens: int) -> None:
        """Believe no more of it than it has room for."""
        if self.auto_tune:
            self._capacities[endpoint.key] = tokens // self.block_tokens

    def forget(self, endpoint: Endpoint) -> None:
        """Its cache is gone."""
        self.index.forget(endpoint.key)

    def retain(self, endpoints: Sequence[Endpoint]) -> None:
        """These are there; of those that are not, only as much is kept as is worth it."""
        present = [endpoint.key for endpoint in endpoints]
        self.index.retain(present)
        for key in self._capacities.keys() - present:
            del self._capacities[key]


@dataclass(frozen=True, slots=True)
class PrefixCacheScorer:
    """The share of the prompt that the endpoint holds, in whole blocks and in one row from the beginning.

    `length_weight`: how much of the score, 0 to 1, is instead the square of the tokens held over `length_scale`.
    """

    producer: PrefixCacheProducer
    length_weight: float = 0.0
    length_scale: int = 8192

    published_only: ClassVar[bool] = False

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Scores:
        """As `epp.scheduling.prefix.match` tells it of one endpoint."""
        prefix = request.prefixes.get(self.producer)
        if prefix is None:
            return {}
        matched = self.producer.index.match(prefix.hashes, pool.endpoints)
        if isinstance(matched, dict):
            return {row: self._score(prefix.units_in(count), prefix) for row, count in matched.items()}
        units = np.array([0, *prefix.ends[: len(prefix.hashes)]])
        units[-1] = prefix.units
        scores: Floats = self._score(units, prefix)[matched]
        return scores

    def _score(self, units: Any, prefix: PrefixChain) -> Any:
        """Of a number of units, or of a column of them."""
        share = units / prefix.units
        if not self.length_weight:
            return share
        length = np.minimum(units * prefix.unit_tokens / self.length_scale, 1.0)
        return self.length_weight * length**2 + (1.0 - self.length_weight) * share
