"""A data producer that does nothing, for plugins that follow requests and need only some of its methods. Pure."""

from collections.abc import Sequence

from epp.endpoints.endpoint import Endpoint, EndpointPool
from epp.request.inference_request import InferenceRequest


class RequestFollower:
    """Every method of `DataProducer`, without effect."""

    def prepare(self, request: InferenceRequest, pool: EndpointPool) -> None:
        """A request is about to be scheduled."""

    def picked(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> None:
        """The request goes to these endpoints."""

    def served(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> None:
        """These endpoints served the request."""

    def failed(self, request: InferenceRequest) -> None:
        """No known endpoint served the request."""

    def sized(self, endpoint: Endpoint, tokens: int) -> None:
        """The endpoint's page has the size of its KV cache."""

    def forget(self, endpoint: Endpoint) -> None:
        """The endpoint's process ended."""

    def retain(self, endpoints: Sequence[Endpoint]) -> None:
        """These endpoints are left."""
