"""The deciders: whether a stage of a request goes to a worker of its own.

Names, parameters and rules: llm-d-router, plugins/scheduling/profilehandler/disagg. Their parameters are all that they know.
"""

from typing import Final

from pydantic import Field

from epp.endpoints.endpoint import Endpoint
from epp.plugins.declaration import Role, only_parameters
from epp.plugins.section import Section
from epp.request.inference_request import InferenceRequest
from epp.scheduling.plugin import PrefixMatchProducer


class Decider(Section):
    """Decides for each request."""

    def apart(
        self, request: InferenceRequest, decode: Endpoint | None, prefixes: PrefixMatchProducer
    ) -> bool:
        """Whether the stage runs elsewhere than at the decode worker; None: that is not chosen yet."""
        return True


class PrefixBasedDecider(Decider):
    non_cached_tokens: int = Field(default=0, ge=0)
    """Tokens of the prompt that the decode worker must not hold; 0: never apart."""
    prompt_tokens: int = Field(default=0, ge=0)
    """Prompts that are shorter stay at the decode worker."""

    def apart(
        self, request: InferenceRequest, decode: Endpoint | None, prefixes: PrefixMatchProducer
    ) -> bool:
        prompt, least = request.prompt_tokens, self.non_cached_tokens
        if decode is None or not least or prompt < max(least, self.prompt_tokens):
            return False
        return prompt - prefixes.held(request, decode) >= least


class MultimodalDecider(Decider):
    def apart(
        self, request: InferenceRequest, decode: Endpoint | None, prefixes: PrefixMatchProducer
    ) -> bool:
        return request.prompt is not None and request.prompt.has_media()


ALWAYS_DISAGG_PD_DECIDER: Final = only_parameters("always-disagg-pd-decider", Role.DECIDER, Decider)
PREFIX_BASED_PD_DECIDER: Final = only_parameters("prefix-based-pd-decider", Role.DECIDER, PrefixBasedDecider)
ALWAYS_DISAGG_MULTIMODAL_DECIDER: Final = only_parameters(
    "always-disagg-multimodal-decider", Role.DECIDER, MultimodalDecider
)
