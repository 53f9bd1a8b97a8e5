"""The declaration of inflight-load-producer; apart from it, because the producer is compiled."""

from typing import Final

from pydantic import Field

from epp.plugins.declaration import PluginContext, PluginDeclaration, Role
from epp.plugins.section import Section
from epp.scheduling.in_flight_load.producer import (
    DEFAULT_OUTPUT_RATIO,
    PRODUCER,
    InFlightLoadProducer,
    OutputEstimate,
)
from epp.scheduling.prefix.declarations import APPROX_PREFIX_CACHE_PRODUCER, prefix_matches


class InflightLoadParameters(Section):
    add_estimated_output_tokens: bool = False
    """Count the answer too."""
    output_ratio: float = Field(default=DEFAULT_OUTPUT_RATIO, ge=0.0, allow_inf_nan=False)
    """The estimated tokens of an answer for each token of its prompt."""
    max_estimated_output_tokens: int | None = Field(default=None, ge=0)
    """The most that an answer is estimated at."""
    prefix_match_info_producer_name: str | None = None
    """The `name` of the producer of prefixes; without it the file's. A file without one counts whole prompts."""
    sync_cross_replica_state: bool = True
    """No effect: pickers share no state."""

    def output(self) -> OutputEstimate | None:
        if not self.add_estimated_output_tokens:
            return None
        return OutputEstimate(self.output_ratio, self.max_estimated_output_tokens)


def in_flight_load(name: str | None, context: PluginContext) -> InFlightLoadProducer:
    """The producer of that name, else the one that has the name of its type; it is added if the file lists none."""
    return context.producer(
        name or PRODUCER, InFlightLoadProducer, default=PRODUCER, field="inFlightLoadProducerName"
    )


def _build(given: InflightLoadParameters, context: PluginContext) -> InFlightLoadProducer:
    """What endpoints hold already is known by the producer that is named, else by the one that other plugins use."""
    named = given.prefix_match_info_producer_name
    used = context.is_wanted(APPROX_PREFIX_CACHE_PRODUCER.type, "prefix_match_info_producer_name")
    matches = prefix_matches(named, context) if named or used else None
    load = InFlightLoadProducer(context.name, matches, given.output())
    context.follow(load)
    if matches is not None:
        context.follow(matches)
    return load


INFLIGHT_LOAD_PRODUCER: Final = PluginDeclaration(
    type=PRODUCER, role=Role.PRODUCER, parameters=InflightLoadParameters, build=_build
)
