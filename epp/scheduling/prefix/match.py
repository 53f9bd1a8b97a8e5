"""How much of a request's prompt an endpoint holds already: what a profile handler may ask. Pure."""

from dataclasses import dataclass

from epp.endpoints.endpoint import Endpoint
from epp.request.inference_request import InferenceRequest
from epp.scheduling.prefix.plugins import PrefixCacheProducer


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """In tokens of 4 bytes, as the producer counts them: `held` from the beginning of the prompt on, of `prompt` in all."""

    held: int
    prompt: int


def prefix_match(request: InferenceRequest, endpoint: Endpoint) -> PrefixMatch | None:
    """What the picker believes to be in the endpoint's prefix cache; None where no producer has seen the prompt.

    That is so where the configuration has no `approx-prefix-cache-producer` and no scorer that needs one, and for a
    request without a prompt. Of several producers, the one that knows of most.
    """
    matches = [
        PrefixMatch(
            chain.units_in(producer.index.held(chain.hashes, endpoint.key)) * chain.unit_tokens,
            chain.units * chain.unit_tokens,
        )
        for producer, chain in request.prefixes.items()
        if isinstance(producer, PrefixCacheProducer)
    ]
    return max(matches, key=lambda match: match.held, default=None)
