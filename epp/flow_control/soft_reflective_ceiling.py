"""The usage limit that lets ever fewer requests of lower priorities go as the pool fills up. Pure."""

import math
from collections.abc import Sequence
from typing import Final

from epp.plugins.declaration import PluginDeclaration, Role


class SoftReflectiveCeiling:
    """The Go picker's soft-reflective-ceiling-policy.

    Rank i of N priorities, highest first, has the ceiling 1 - i * saturation / (N - 1). From there on it is open in one of
    round(saturation / (1 - saturation)) calls. All closed ranks open in the same calls: a dispatch stops at the first priority
    that is closed.
    """

    per_request = True

    def __init__(self) -> None:
        self._calls = 0

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        steps = len(priorities) - 1
        if steps < 1:
            return [1.0] * len(priorities)
        if saturation < 1.0 - saturation:  # the lowest ceiling
            return [1.0] * len(priorities)
        past = 1.0 if self._opens(saturation) else 0.0
        reached = (saturation >= 1.0 - rank * saturation / steps for rank in range(1, steps + 1))
        return [1.0, *(past if closed else 1.0 for closed in reached)]

    def _opens(self, saturation: float) -> bool:
        if saturation >= 1.0:
            return False
        period = max(1, math.floor(saturation / (1.0 - saturation + 1e-9) + 0.5))
        self._calls += 1
        return self._calls % period == 0


SOFT_REFLECTIVE_CEILING_POLICY: Final = PluginDeclaration(
    type="soft-reflective-ceiling-policy",
    role=Role.USAGE_LIMIT,
    build=lambda given, context: SoftReflectiveCeiling(),
)
