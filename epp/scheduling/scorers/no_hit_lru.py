"""Spreads the requests whose prompt no endpoint has in its cache: the endpoint that got such a request longest ago first.

Formula: llm-d-router, plugins/scheduling/scorer/nohitlru, scoreColdRequestByLRU.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

import numpy as np
from pydantic import Field

from epp.endpoints.endpoint import Endpoint, EndpointPool, Floats
from epp.plugins.declaration import PluginContext, PluginDeclaration, Role
from epp.plugins.section import Section
from epp.request.inference_request import InferenceRequest
from epp.scheduling.plugin import DataProducer, RequestFollower, SharedPrefixProducer
from epp.scheduling.prefix.declarations import prefix_cache

DEFAULT_SIZE: Final = 1024
_NEUTRAL: Final = 0.5


class NoHitLruScorer(RequestFollower):
    """0.5 for all if one of them holds a part of the prompt. Otherwise 1 for the first, down to 0 for the last.

    First come the endpoints that never got such a request, then the others by the time of their last one. `size`: the
    most endpoints whose order is remembered.
    """

    published_only: ClassVar[bool] = False

    def __init__(self, producer: SharedPrefixProducer, size: int = DEFAULT_SIZE) -> None:
        self.producer = producer
        self.producers: tuple[DataProducer, ...] = (producer,)
        self._size = size
        self._used: OrderedDict[str, None] = OrderedDict()
        """The ids of the endpoints that got a cold request, the one that got its last one longest ago first."""
        self._is_cold = False
        """Whether the request being scheduled is cold: a pick is atomic, from `prepare` to `picked`."""

    def prepare(self, request: InferenceRequest, pool: EndpointPool) -> None:
        self._is_cold = False

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Floats:
        self._is_cold = not self._is_held(request, pool)
        return self._by_last_use(pool) if self._is_cold else np.full(len(pool), _NEUTRAL)

    def picked(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> None:
        if not self._is_cold:
            return
        self._is_cold = False
        for endpoint in endpoints:
            self._used[endpoint.id] = None
            self._used.move_to_end(endpoint.id)
        while len(self._used) > self._size:
            self._used.popitem(last=False)

    def retain(self, endpoints: Sequence[Endpoint]) -> None:
        for name in self._used.keys() - {endpoint.id for endpoint in endpoints}:
            del self._used[name]

    def _is_held(self, request: InferenceRequest, pool: EndpointPool) -> bool:
        matched = self.producer.matches(request, pool)
        return any(matched.values()) if isinstance(matched, Mapping) else bool(matched.any())

    def _by_last_use(self, pool: EndpointPool) -> Floats:
        if len(pool) == 1:
            return np.ones(1)
        positions = {name: at for at, name in enumerate(self._used)}
        at = np.array([positions.get(endpoint.id, -1) for endpoint in pool.endpoints])
        unused = at < 0
        ranks = np.where(unused, unused.cumsum() - 1, unused.sum() + at)
        scores: Floats = np.maximum(1.0 - ranks / (len(pool) - 1), 0.0)
        return scores


class NoHitLruParameters(Section):
    lru_size: int = Field(default=DEFAULT_SIZE, le=1_000_000)
    """This many workers are remembered; 0 or less: the default."""
    prefix_match_info_producer_name: str | None = None
    """The `name` of the producer of prefixes; without it the file's producer, else one with the defaults."""
    prefix_plugin_type: str = ""
    """No effect."""
    prefix_plugin_name: str = ""
    """No effect."""


def _build(given: NoHitLruParameters, context: PluginContext) -> NoHitLruScorer:
    producer = prefix_cache(given.prefix_match_info_producer_name, context)
    scorer = NoHitLruScorer(producer, given.lru_size if given.lru_size > 0 else DEFAULT_SIZE)
    context.follow(scorer)
    return scorer


NO_HIT_LRU_SCORER: Final = PluginDeclaration(
    type="no-hit-lru-scorer",
    role=Role.SCORER,
    parameters=NoHitLruParameters,
    build=_build,
    reads_metrics=False,
)
