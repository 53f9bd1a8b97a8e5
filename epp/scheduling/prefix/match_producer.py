"""What plugins ask of a data producer that knows which endpoints hold the beginning of a prompt. Pure."""

from typing import Protocol, runtime_checkable

from epp.endpoints.endpoint import Endpoint, EndpointPool, Floats
from epp.request.inference_request import InferenceRequest, PrefixChain
from epp.scheduling.plugin import DataProducer, Scorer


@runtime_checkable
class PrefixMatchProducer(DataProducer, Protocol):
    """A data producer that finds matches; `chain` says what it has made of the prompt, None: there is no prompt."""

    def chain(self, request: InferenceRequest) -> PrefixChain | None: ...

    def matched_units(self, request: InferenceRequest, pool: EndpointPool) -> Floats | None:
        """Units of the prompt's beginning that each endpoint holds; None if there is no prompt."""

    def held(self, request: InferenceRequest, endpoint: Endpoint) -> int:
        """Tokens of the prompt's beginning that the endpoint holds."""

    def scorer(self, length_weight: float, length_scale: int) -> Scorer:
        """Scores endpoints by what they hold; the parameters are those of prefix-cache-scorer."""
