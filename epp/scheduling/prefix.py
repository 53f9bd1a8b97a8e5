"""The prefix cache plugins: one says where a prompt's beginning is likely to be cached, the other what that is worth.

Names, parameters and values are those of the Go picker. There is no tokenizer: 4 bytes of a prompt, as it stands in
the request's JSON, count as a token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from xxhash import xxh3_64_intdigest

from epp.endpoint import Endpoint, EndpointPool, Floats
from epp.request import InferenceRequest, PrefixChain
from epp.scheduling.plugin import Scores
from epp.scheduling.prefix_index import PrefixIndex

PRODUCER: Final = "approx-prefix-cache-producer"
LEAST_BLOCK: Final = 64
"""Tokens in a block that a configuration can ask for: smaller ones cost more than they tell."""
_TOKEN_BYTES: Final = 4


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class PrefixCacheProducer:
    """Writes down which endpoint served which prompt, and names the blocks of each new one.

    `block_tokens`: tokens in a block. `max_tokens`, or where that is 0 `max_blocks`: how much of a prompt is looked
    at, 0: all. `capacity`: blocks that one endpoint is believed to hold. `seed` makes the hashes those of this picker,
    so that nobody can prepare prompts that collide.
    """

    block_tokens: int = LEAST_BLOCK
    max_tokens: int = 0
    max_blocks: int = 0
    capacity: int = 7812
    seed: int = 0
    index: PrefixIndex = field(default_factory=PrefixIndex, repr=False)

    def prepare(self, request: InferenceRequest, pool: EndpointPool) -> None:
        """Name the blocks of its prompt, the last one may be short; prompts of different models share none."""
        if request.prompt is None:
            return
        size = self.block_tokens * _TOKEN_BYTES
        most = max(self.max_tokens // self.block_tokens, 1) if self.max_tokens else self.max_blocks
        text = request.prompt.head(most * size if most else None)
        block = xxh3_64_intdigest(request.prompt.context(), self.seed)
        chain = [
            block := xxh3_64_intdigest(text[start : start + size], block)
            for start in range(0, len(text), size)
        ]
        request.prefixes[self] = PrefixChain(chain, self.block_tokens)

    def served(self, request: InferenceRequest, endpoint: Endpoint) -> None:
        """The worker has the prompt in its cache from now on."""
        prefix = request.prefixes.get(self)
        if prefix is not None:
            self.index.record(prefix.blocks, endpoint.key, self.capacity)

    def forget(self, endpoint: Endpoint) -> None:
        """Its cache is gone."""
        self.index.forget(endpoint.key)

    def retain(self, endpoints: Sequence[Endpoint]) -> None:
        """These are there; of those that are not, only as much is kept as is worth it."""
        self.index.retain([endpoint.key for endpoint in endpoints])


@dataclass(frozen=True, slots=True)
class PrefixCacheScorer:
    """The share of the prompt's blocks that the endpoint holds, in one row from the beginning.

    `length_weight`: how much of the score, 0 to 1, is instead the square of the tokens held over `length_scale`.
    """

    producer: PrefixCacheProducer
    length_weight: float = 0.0
    length_scale: int = 8192

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Scores:
        prefix = request.prefixes.get(self.producer)
        if prefix is None:
            return {}
        matched = self.producer.index.match(prefix.blocks, pool.endpoints)
        if isinstance(matched, dict):
            return {row: self._worth(length, prefix) for row, length in matched.items()}
        lengths, places = np.unique(matched, return_inverse=True)
        worth: Floats = np.array([self._worth(length, prefix) for length in lengths.tolist()])[places]
        return worth

    def _worth(self, blocks: float, prefix: PrefixChain) -> float:
        share = blocks / len(prefix.blocks)
        if not self.length_weight:
            return share
        length = min(blocks * prefix.block_tokens / self.length_scale, 1.0)
        return self.length_weight * length**2 + (1.0 - self.length_weight) * share
