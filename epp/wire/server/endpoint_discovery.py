"""EDS as a method of our gRPC server: Envoys that ask this picker hear of its endpoints on the same port."""

from collections.abc import Callable
from typing import Final

from google.protobuf.message import DecodeError

from discovery.eds.messages.eds_pb2 import DiscoveryRequest
from discovery.eds.subscription import MAX_PEER_STREAMS, METHOD, SERVICE, EndpointSubscription, Publication
from epp.wire.http2.limits import TokenBucket
from epp.wire.server.grpc_call import Call, Method
from epp.wire.server.grpc_messages import GrpcStatus, StatusError

_BURST: Final = 100
_REQUESTS_PER_SECOND: Final = 20
"""Requests of one stream. Envoy sends one for each response, and one for each subscription."""
_MAX_STREAMS: Final = 4096
_SHUTTING_DOWN: Final = "the picker is shutting down"


def endpoint_methods(publication: Publication, clock: Callable[[], float]) -> dict[bytes, Method]:
    """The methods of the endpoint discovery service, by path."""
    return {f"/{SERVICE}/{METHOD}".encode(): lambda call: _EndpointStream(call, publication, clock)}


class _EndpointStream:
    """Handler of StreamEndpoints: lasts for as long as its Envoy is connected."""

    __slots__ = ("_bucket", "_call", "_publication", "_subscription")

    def __init__(self, call: Call, publication: Publication, clock: Callable[[], float]) -> None:
        self._call = call
        self._publication = publication
        self._subscription = EndpointSubscription(publication)
        self._bucket = TokenBucket(_BURST, _REQUESTS_PER_SECOND, clock)

    def message(self, payload: bytes) -> None:
        subscribers = self._publication.subscribers
        is_new = self._tell not in subscribers
        if not self._bucket.take() or (is_new and len(subscribers) >= _MAX_STREAMS):
            raise StatusError(GrpcStatus.RESOURCE_EXHAUSTED, "too many requests for endpoints; ask later")
        if is_new and not self._publication.admit(self._call.peer, self._tell):
            raise StatusError(
                GrpcStatus.RESOURCE_EXHAUSTED, f"at most {MAX_PEER_STREAMS} streams of one address"
            )
        try:
            self._subscription.receive(DiscoveryRequest.FromString(payload))
        except DecodeError:
            raise StatusError(GrpcStatus.INTERNAL, "the message is not a DiscoveryRequest") from None
        self._call.begin()
        self._tell()

    def half_closed(self) -> None:
        self._call.finish(GrpcStatus.OK)

    def fault(self, error: Exception) -> None:
        self._call.fail(error, "a stream of endpoints")

    def closed(self, cause: str) -> None:
        if self._tell in self._publication.subscribers:
            self._publication.leave(self._call.peer, self._tell)

    def _tell(self) -> None:
        if self._publication.closed:
            self._call.finish(GrpcStatus.UNAVAILABLE, _SHUTTING_DOWN)
        elif (response := self._subscription.next_response()) is not None:
            self._call.send((response.SerializeToString(),))
