"""A request in the queue of its flow, as ordering and fairness policies see it. Pure."""

from epp.request.body import header_bytes
from epp.request.inference_request import InferenceRequest
from epp.scheduling.waiting import WaitingRequest


def bytes_held(request: InferenceRequest) -> int:
    """Its body and its headers."""
    return request.body_size + header_bytes(request.headers)


class QueuedRequest:
    """`arrived_at`: seconds of the picker's clock. `ttl`: seconds that it may wait while the pool has endpoints; 0: no limit.

    `size`: bytes that it holds. `rank`: what the ordering policy of its band made of it. `sequence`: its place in the order of
    arrival. `waiting`: who is told that it goes; set by the controller.
    """

    __slots__ = ("arrived_at", "rank", "request", "sequence", "size", "ttl", "waiting")

    def __init__(
        self,
        request: InferenceRequest,
        arrived_at: float,
        ttl: float,
        sequence: int,
    ) -> None:
        self.request = request
        self.arrived_at = arrived_at
        self.ttl = ttl
        self.size = bytes_held(request)
        self.sequence = sequence
        self.rank = 0.0
        self.waiting: WaitingRequest
