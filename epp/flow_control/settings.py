"""The settings of flow control. Defaults: llm-d-router, pkg/epp/flowcontrol/registry/config.go and controller/config.go."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from epp.flow_control.fairness import FairnessPolicy
from epp.flow_control.orderings import OrderingPolicy
from epp.flow_control.usage_limits import UsageLimitPolicy

DEFAULT_TTL: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityBand:
    """The limits of the requests that wait at one priority, and their order. `max_bytes`: of the bodies."""

    max_requests: int = 5000
    max_bytes: int = 1_000_000_000
    fairness: FairnessPolicy
    ordering: OrderingPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowControlSettings:
    """Times in seconds, sizes in bytes.

    `max_requests`, `max_bytes`: of all bands together, None: no limit but those of the bands. `request_ttl`: how long a
    request may wait while the pool has endpoints, `no_endpoint_ttl`: while it has none; 0: no limit. The wait counts anew
    when the pool becomes empty or gets its first endpoint. `bands`: by priority; a band for another priority is made when a
    request needs it, as `default_negative_band` below 0 if that is given, otherwise as `default_band`. `eviction`: a request
    of priority 0 or more that finds `max_requests` or `max_bytes` reached takes the place of some below 0, and one that waits
    while workers compute some below 0 of a lower priority has those taken back. `idle_band`: how
    long a band that was made on demand stays without a request.
    """

    max_requests: int | None = None
    max_bytes: int | None = None
    request_ttl: float = DEFAULT_TTL
    no_endpoint_ttl: float = DEFAULT_TTL
    bands: Mapping[int, PriorityBand] = field(default_factory=dict)
    default_band: PriorityBand
    default_negative_band: PriorityBand | None = None
    usage_limit: UsageLimitPolicy
    eviction: bool = False
    idle_band: float = 600.0

    @property
    def longest_wait(self) -> float:
        """Seconds that a request waits at most, however often the pool becomes empty and gets an endpoint; inf: no limit."""
        if not self.request_ttl or not self.no_endpoint_ttl:
            return math.inf
        return 2.0 * (self.request_ttl + self.no_endpoint_ttl)
