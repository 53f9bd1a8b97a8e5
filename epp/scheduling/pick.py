"""What became of one request: where it goes. Pure."""

from epp.endpoints.endpoint import Endpoint
from epp.request.inference_request import InferenceRequest


class Pick:
    """What became of a request: `endpoints[0]` is the choice, the rest are its fallbacks in order.

    `observed`: what who observes it keeps with it. `settled`: the data producers know how it ended.
    """

    __slots__ = ("endpoints", "observed", "request", "settled")

    def __init__(self, request: InferenceRequest, endpoints: tuple[Endpoint, ...]) -> None:
        self.request = request
        self.endpoints = endpoints
        self.observed: object = None
        self.settled = False
