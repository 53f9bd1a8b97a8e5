"""How full the pool may be for requests of each priority. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from pydantic import Field

from epp.plugins.declaration import PluginDeclaration, Role
from epp.plugins.section import Section


class UsageLimitPolicy(Protocol):
    """Sets a ceiling for each priority: its requests go while the saturation of the pool is below it."""

    @property
    def per_request(self) -> bool:
        """Whether the ceilings change from call to call. Then they are asked for anew for each request, and every 10 ms while
        one waits."""

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        """The ceiling of each priority, highest first, and none above that of a higher priority; 1.0: until the pool is full.

        `priorities`: those of all bands that exist, highest first. Asked once for each look at the pool, or `per_request`.
        """


@dataclass(frozen=True, slots=True)
class StaticUsageLimit:
    """The Go picker's static-usage-limit-policy: the same ceiling for all priorities."""

    threshold: float = 1.0
    per_request = False

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        return [self.threshold] * len(priorities)


class StaticUsageLimitParameters(Section):
    threshold: float = Field(default=1.0, gt=0.0, le=1.0)
    """The share of the pool that may be in use."""


STATIC_USAGE_LIMIT_POLICY: Final = PluginDeclaration(
    type="static-usage-limit-policy",
    role=Role.USAGE_LIMIT,
    parameters=StaticUsageLimitParameters,
    build=lambda given, context: StaticUsageLimit(given.threshold),
)
