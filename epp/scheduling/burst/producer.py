"""The data producer that places prompts of one window together, and a scorer of where they were placed.

Parameters: llm-d-router, plugins/requestcontrol/dataproducer/burstprefix. A placed prompt is all held at its endpoint and
not at all elsewhere; one that has nothing in common with the others of its window is held nowhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from epp.endpoints.endpoint import Endpoint, EndpointPool, Floats
from epp.request.inference_request import InferenceRequest, PrefixChain, RequestData
from epp.scheduling.burst.placement import PlacementRules, place
from epp.scheduling.burst.window import BurstWindow
from epp.scheduling.plugin import AdmissionController, DataProducer, RequestFollower
from epp.scheduling.prefix.plugins import PrefixCacheProducer

PRODUCER: Final = "burst-prefix-cache-producer"
DEFAULT_BLOCKS: Final = 2048
"""Blocks of a prompt that are compared; beyond them prompts count as equal."""
_ONE_UNIT_EACH: Final = 1 << 30
"""The grain of blocks that do not grow: their number is a parameter here."""


class BurstPrefixProducer(RequestFollower):
    """`window`: seconds; `most_requests`: in one window, None: no limit. `window.py` collects them and calls `place`."""

    def __init__(
        self, *, window: float = 0.1, block_tokens: int = 64, max_blocks: int = DEFAULT_BLOCKS,
        most_requests: int | None = 1000, rules: PlacementRules | None = None, seed: int = 0,
    ) -> None:  # fmt: skip
        self.window = window
        self.most_requests = most_requests
        self._rules = rules or PlacementRules()
        self._hashes = PrefixCacheProducer(
            block_tokens=block_tokens, max_blocks=max_blocks, grain=_ONE_UNIT_EACH, seed=seed
        )
        self._placed: RequestData[tuple[str, str]] = RequestData()
        """The key of the endpoint."""

    def read(self, request: InferenceRequest, pool: EndpointPool) -> bool:
        """Hash the prompt before it waits; whether there is one."""
        self._hashes.prepare(request, pool)
        chain = self.chain(request)
        return chain is not None and bool(chain.hashes)

    def place(self, requests: Sequence[InferenceRequest], pool: EndpointPool) -> None:
        """Place the requests of a window at the endpoints of the pool."""
        order = sorted(range(len(pool)), key=lambda row: pool.endpoints[row].id)
        chains = [self.chain(request) for request in requests]
        prompts = [() if chain is None else chain.hashes for chain in chains]
        rows = place(prompts, pool.running[order].tolist(), self._rules)
        for request, row in zip(requests, rows, strict=True):
            if row is not None:
                self._placed.keep(request, pool.endpoints[order[row]].key)

    def chain(self, request: InferenceRequest) -> PrefixChain | None:
        return self._hashes.chain(request)

    def matched_units(self, request: InferenceRequest, pool: EndpointPool) -> Floats | None:
        chain = self.chain(request)
        if chain is None:
            return None
        units = np.zeros(len(pool))
        key = self._placed.of(request)
        for row, endpoint in enumerate(pool.endpoints if key is not None else ()):
            if endpoint.key == key:
                units[row] = chain.units
        return units

    def held(self, request: InferenceRequest, endpoint: Endpoint) -> int:
        chain = self.chain(request)
        if chain is None or self._placed.of(request) != endpoint.key:
            return 0
        return chain.units * chain.unit_tokens

    def admission(self, behind: AdmissionController) -> AdmissionController:
        """Requests wait in the window of this producer, after `behind` let them pass."""
        return BurstWindow(self, behind)

    def scorer(self, length_weight: float, length_scale: int) -> "BurstPrefixScorer":
        return BurstPrefixScorer(self, length_weight, length_scale)


@dataclass(frozen=True, slots=True)
class BurstPrefixScorer:
    """`PrefixCacheScorer`, for where prompts were placed."""

    producer: BurstPrefixProducer
    length_weight: float = 0.0
    length_scale: int = 8192

    @property
    def published_only(self) -> bool:
        return False

    @property
    def producers(self) -> tuple[DataProducer, ...]:
        return (self.producer,)

    def score(self, request: InferenceRequest, pool: EndpointPool) -> dict[int, float]:
        chain, units = self.producer.chain(request), self.producer.matched_units(request, pool)
        if chain is None or units is None:
            return {}
        length = min(1.0, chain.units * chain.unit_tokens / self.length_scale)
        score = self.length_weight * length**2 + 1.0 - self.length_weight
        return dict.fromkeys(units.nonzero()[0].tolist(), score)
