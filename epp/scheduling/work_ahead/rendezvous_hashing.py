"""Lets several pickers send the same prompts to the same endpoint, although they know nothing of each other. Pure.

Each picker knows only what it sent itself, so each would compute every prefix on a worker of its own choice. A prompt that is
new to a picker may be held by the worker that another picker chose. So all of them prefer the same worker for it: the one
with the highest hash of its id and of that part of the prompt which tells the prompt from the others (rendezvous hashing,
Thaler and Ravishankar, 1998).
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from epp.endpoints.endpoint import Endpoint, Floats
from epp.request.inference_request import TOKEN_BYTES, InferenceRequest, PrefixChain

_BELIEF: Final = 0.8
"""The share of the missing tokens that the preferred worker is believed to hold."""
_MOST: Final = 8192.0
"""Tokens that it is believed to hold at most."""
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX: Final = np.uint64(0xD6E8FEB86659FD93)
_HALF: Final = np.uint64(32)

Hashes = NDArray[np.uint64]


def hashes_of(endpoints: Sequence[Endpoint]) -> Hashes:
    """One for each endpoint, the same in every picker."""
    return np.array([xxh3_64_intdigest(endpoint.id.encode()) for endpoint in endpoints], dtype=np.uint64)


def credit_preferred(
    missing: Floats, request: InferenceRequest, chain: PrefixChain, held: Floats, hashes: Hashes
) -> None:
    """Take what the preferred worker is believed to hold from its missing tokens.

    `held`: the units that each endpoint is known to hold. What most of them hold is everybody's, such as a system prompt,
    and tells nothing: the block behind it is hashed.
    """
    common = _held_by_most(held)
    if common >= chain.units or request.prompt is None:
        return
    block = bisect_right(chain.ends, common, 0, len(chain.hashes))
    size = chain.unit_tokens * TOKEN_BYTES
    text = request.prompt.prefix(chain.ends[block] * size)[common * size :]
    mixed = (hashes ^ np.uint64(xxh3_64_intdigest(text))) * _GOLDEN
    mixed = (mixed ^ (mixed >> _HALF)) * _MIX
    row = int(mixed.argmax())
    missing[row] = max(1.0, missing[row] - _BELIEF * min(missing[row], _MOST))


def _held_by_most(held: Floats) -> int:
    """Units that more than half of the endpoints hold."""
    if 2 * int(np.count_nonzero(held)) <= len(held):
        return 0
    middle = (len(held) - 1) // 2
    return int(np.partition(held, middle)[middle])
