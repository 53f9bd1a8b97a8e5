"""The result of one profile for a request. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from epp.endpoints.endpoint import Endpoint
from epp.request.rejection import Rejection


@dataclass(frozen=True, slots=True)
class ProfileResult:
    """`endpoints[0]` is the choice, the rest are its fallbacks; never empty.

    `scores`: of all candidates by destination, with `SchedulerProfile.reports_scores`.
    """

    endpoints: tuple[Endpoint, ...]
    scores: Mapping[str, float] | None = None


Results: TypeAlias = Mapping[str, ProfileResult | Rejection]
"""By profile that has run; a `Rejection` if it found no endpoint."""
