"""The declaration of least-cost-scorer; apart from it, because the scorer is compiled."""

from typing import Final

from pydantic import Field

from epp.plugins.declaration import PluginContext, PluginDeclaration, Role
from epp.plugins.section import Section
from epp.scheduling.prefix.declarations import prefix_cache
from epp.scheduling.work_ahead.least_cost import (
    ADAPTER_LOAD_SECONDS,
    INTERFERENCE,
    REQUEST_TOKENS,
    LeastCostScorer,
)
from epp.scheduling.work_ahead.producer import WorkAheadProducer


class LeastCostParameters(Section):
    request_tokens: float = Field(default=REQUEST_TOKENS, ge=0.0, allow_inf_nan=False)
    """Each request that is there costs as much as so many tokens of a prompt."""
    interference: float = Field(default=INTERFERENCE, ge=0.0, allow_inf_nan=False)
    """The share of a prompt's cost that each request there suffers while it is computed."""
    adapter_load_seconds: float = Field(default=ADAPTER_LOAD_SECONDS, ge=0.0, allow_inf_nan=False)
    """A LoRA adapter takes so many seconds to load."""
    prefix_match_info_producer_name: str | None = None
    """The `name` of the producer of prefixes; without it the file's producer, else one with the defaults."""


def _build(given: LeastCostParameters, context: PluginContext) -> LeastCostScorer:
    prefixes = prefix_cache(given.prefix_match_info_producer_name, context)
    work_ahead = context.shared(WorkAheadProducer, prefixes, lambda: WorkAheadProducer(prefixes))
    return LeastCostScorer(work_ahead, given.request_tokens, given.interference, given.adapter_load_seconds)


LEAST_COST_SCORER: Final = PluginDeclaration(
    type="least-cost-scorer", role=Role.SCORER, parameters=LeastCostParameters, build=_build
)
