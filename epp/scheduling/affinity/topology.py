"""Prefers, or keeps, the endpoints that are near the endpoint that another profile chose for the same request.

A profile handler says which one, in `InferenceRequest.peer`. Labels, levels and scores: llm-d-router, plugins
topology-extractor, topology-affinity-scorer and topology-affinity-filter.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import ClassVar, Final, Literal

import numpy as np

from epp.endpoints.endpoint import Endpoint, EndpointPool, Floats, Mask
from epp.plugins.declaration import PluginContext, PluginDeclaration, Role, only_parameters
from epp.plugins.section import Section
from epp.request.inference_request import InferenceRequest
from epp.scheduling.plugin import Scores


class TopologyLevel(IntEnum):
    """The places that two endpoints may share, the nearest first."""

    HOST = 0
    RACK = 1
    ZONE = 2
    REGION = 3
    NONE = 4


LEVEL_SCORES: Final[Mapping[TopologyLevel, float]] = {
    TopologyLevel.HOST: 1.0,
    TopologyLevel.RACK: 0.2,
    TopologyLevel.ZONE: 0.05,
    TopologyLevel.REGION: 0.02,
    TopologyLevel.NONE: 0.0,
}


class TopologyLabels(Section):
    """The labels that say where an endpoint runs; discovery's node and zone count where it has none for these."""

    hostname: str = ""
    """The label of an endpoint's host; without it `kubernetes.io/hostname`."""
    rack: str = ""
    """The label of its rack; without it `topology.kubernetes.io/rack`."""
    zone: str = ""
    """The label of its zone; without it `topology.kubernetes.io/zone`."""
    region: str = ""
    """The label of its region; without it `topology.kubernetes.io/region`."""

    def place_of(self, endpoint: Endpoint) -> tuple[str, str, str, str]:
        """Host, rack, zone and region, in the order of `TopologyLevel`; empty where unknown."""
        labels = endpoint.labels
        return (
            labels.get(self.hostname or "kubernetes.io/hostname") or endpoint.node or "",
            labels.get(self.rack or "topology.kubernetes.io/rack", ""),
            labels.get(self.zone or "topology.kubernetes.io/zone") or endpoint.zone or "",
            labels.get(self.region or "topology.kubernetes.io/region", ""),
        )

    def level(self, peer: Endpoint, endpoint: Endpoint) -> TopologyLevel:
        """The nearest level that both share; what is unknown is not shared."""
        places = zip(self.place_of(peer), self.place_of(endpoint), strict=True)
        shared = (level for level, (one, other) in enumerate(places) if one and one == other)
        return TopologyLevel(next(shared, TopologyLevel.NONE))

    def levels(self, request: InferenceRequest, pool: EndpointPool) -> list[TopologyLevel] | None:
        """The level of each endpoint; None if the request has no peer, or nobody knows where that runs."""
        peer = request.peer
        if peer is None or not any(self.place_of(peer)):
            return None
        return [self.level(peer, endpoint) for endpoint in pool.endpoints]


@dataclass(frozen=True, slots=True)
class TopologyAffinityScorer:
    """1 on the peer's host, 0.2 in its rack, 0.05 in its zone, 0.02 in its region, else 0."""

    labels: TopologyLabels = field(default_factory=TopologyLabels)

    published_only: ClassVar[bool] = False

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Scores:
        levels = self.labels.levels(request, pool)
        if levels is None:
            return {}
        scores: Floats = np.array([LEVEL_SCORES[level] for level in levels])
        return scores


@dataclass(frozen=True, slots=True)
class TopologyAffinityFilter:
    """Keeps the endpoints that share `least` or something nearer with the peer; all if none does."""

    least: TopologyLevel = TopologyLevel.HOST
    labels: TopologyLabels = field(default_factory=TopologyLabels)

    def filter(self, request: InferenceRequest, pool: EndpointPool) -> Mask:
        levels = self.labels.levels(request, pool)
        near = np.array([level <= self.least for level in levels or ()], dtype=np.bool_)
        return near if near.any() else np.ones(len(pool), dtype=np.bool_)


class TopologyScorerParameters(Section):
    topology_producer_name: str = ""
    """The `name` of a `topology-extractor`; without it the one of that name, else the default labels."""


class TopologyFilterParameters(TopologyScorerParameters):
    min_affinity: Literal["", "host", "rack", "zone", "region"] = "host"
    """Keeps endpoints that are at least as near."""


def _labels(given: TopologyScorerParameters, context: PluginContext) -> TopologyLabels:
    extractor = context.parameters(
        given.topology_producer_name,
        TopologyLabels,
        default=TOPOLOGY_EXTRACTOR.type,
        field="topologyProducerName",
    )
    return extractor or TopologyLabels()


def _filter(given: TopologyFilterParameters, context: PluginContext) -> TopologyAffinityFilter:
    least = TopologyLevel[(given.min_affinity or "host").upper()]
    return TopologyAffinityFilter(least, _labels(given, context))


TOPOLOGY_EXTRACTOR: Final = only_parameters("topology-extractor", Role.EXTRACTOR, TopologyLabels)
TOPOLOGY_AFFINITY_SCORER: Final = PluginDeclaration(
    type="topology-affinity-scorer",
    role=Role.SCORER,
    parameters=TopologyScorerParameters,
    build=lambda given, context: TopologyAffinityScorer(_labels(given, context)),
    reads_metrics=False,
)
TOPOLOGY_AFFINITY_FILTER: Final = PluginDeclaration(
    type="topology-affinity-filter", role=Role.FILTER, parameters=TopologyFilterParameters, build=_filter
)
