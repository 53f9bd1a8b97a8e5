"""Tells a profile handler how much of a prompt is in an endpoint's prefix cache. Pure."""

from dataclasses import dataclass

from epp.endpoints.endpoint import Endpoint
from epp.request.inference_request import InferenceRequest
from epp.scheduling.prefix.plugins import PrefixCacheProducer


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """`held`: tokens of the prompt's beginning that the endpoint holds; `prompt`: tokens of all of it.

    The data producer counts 4 bytes as one token.
    """

    held: int
    prompt: int


def prefix_match(request: InferenceRequest, endpoint: Endpoint) -> PrefixMatch | None:
    """What the endpoint is believed to hold of the prompt; None if no data producer has seen the prompt.

    That is so if the configuration has neither an `approx-prefix-cache-producer` nor a scorer that needs one, or the
    request has no prompt. With several producers, the longest match counts.
    """
    matches = [
        PrefixMatch(producer.held(request, endpoint), chain.units * chain.unit_tokens)
        for producer, chain in request.prefixes.items()
        if isinstance(producer, PrefixCacheProducer)
    ]
    return max(matches, key=lambda match: match.held, default=None)
