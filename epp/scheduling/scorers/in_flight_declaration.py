"""The declaration of in-flight-scorer; apart from it, because the scorer is compiled."""

from typing import Final

from pydantic import Field

from epp.plugins.declaration import PluginDeclaration, Role
from epp.plugins.section import Section
from epp.scheduling.scorers.in_flight import DEFAULT_REQUESTS, InFlightScorer


class InFlightParameters(Section):
    requests: int = Field(default=DEFAULT_REQUESTS, ge=1)
    """So many requests that the page does not show yet score 0.5."""


IN_FLIGHT_SCORER: Final = PluginDeclaration(
    type="in-flight-scorer",
    role=Role.SCORER,
    parameters=InFlightParameters,
    build=lambda given, context: InFlightScorer(given.requests),
)
