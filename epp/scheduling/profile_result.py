"""What one profile chose for a request. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from epp.endpoints.endpoint import Endpoint
from epp.request.rejection import Rejection


@dataclass(frozen=True, slots=True)
class ProfileResult:
    """`endpoints[0]` is the choice, the rest are its fallbacks; there is always one.

    `scores`: of all candidates by destination, where they are asked for (`SchedulerProfile.reports_scores`).
    """

    endpoints: tuple[Endpoint, ...]
    scores: Mapping[str, float] | None = None


Results: TypeAlias = Mapping[str, ProfileResult | Rejection]
"""By profile, for those that have run; a rejection where one found no endpoint that is fit."""
