"""Follows what each Envoy asked for and got, by the state-of-the-world form of EDS. Knows no transport.

https://www.envoyproxy.io/docs/envoy/latest/api-docs/xds_protocol
"""

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from google.protobuf.any_pb2 import Any as ProtobufAny

from adsum.logs import RateLimitedLog
from adsum.quoting import quoted
from discovery.eds.assignment import TYPE_URL, Assignment, HealthStatus, LbEndpoint, version
from discovery.eds.messages.eds_pb2 import (
    DRAINING,
    UNHEALTHY,
    ClusterLoadAssignment,
    DiscoveryRequest,
    DiscoveryResponse,
)

log = logging.getLogger("discovery.eds")

SERVICE: Final = "envoy.service.endpoint.v3.EndpointDiscoveryService"
METHOD: Final = "StreamEndpoints"
MAX_PEER_STREAMS: Final = 256
"""Streams of one address, so that none takes all."""
_LOGGED_PER_MINUTE: Final = 20
_HEALTH: Final = {HealthStatus.DRAINING: DRAINING, HealthStatus.UNHEALTHY: UNHEALTHY}


class Publication:
    """The present assignment of one cluster. Before the first one nobody is answered, so that an Envoy keeps what it had.

    `subscribers` are called after each change, and when it closes.
    """

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self.response: DiscoveryResponse | None = None
        self.closed = False
        self.subscribers: set[Callable[[], None]] = set()
        self.limited_log = RateLimitedLog(log)
        self.arrivals_log = RateLimitedLog(log, most=_LOGGED_PER_MINUTE)
        # bounded: by the streams that are open
        self._streams: Counter[str] = Counter()

    def publish(self, assignment: Assignment) -> None:
        """Tell every Envoy that is connected, and whoever asks from now on."""
        packed = ProtobufAny(type_url=TYPE_URL, value=_encode(self.cluster, assignment.endpoints))
        told = version(self.cluster, assignment.endpoints)
        self.response = DiscoveryResponse(version_info=told, resources=[packed], type_url=TYPE_URL)
        self._wake()

    def admit(self, address: str, wake: Callable[[], None]) -> bool:
        """Count one more stream of that address, and call `wake` until it leaves; False: it has as many as it may."""
        if self._streams[address] >= MAX_PEER_STREAMS:
            said = "%s has %d streams that ask for endpoints, more are refused"
            self.limited_log.warning("peer", said, address, MAX_PEER_STREAMS)
            return False
        self._streams[address] += 1
        self.subscribers.add(wake)
        return True

    def leave(self, address: str, wake: Callable[[], None]) -> None:
        """A stream that was admitted has ended."""
        self.subscribers.remove(wake)
        self._streams[address] -= 1
        if not self._streams[address]:
            del self._streams[address]

    def close(self) -> None:
        """End all streams: Envoys keep what they have, and ask elsewhere."""
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        for wake in list(self.subscribers):
            wake()


class EndpointSubscription:
    """One stream of an Envoy: what it asked for and got."""

    def __init__(self, publication: Publication) -> None:
        self._publication = publication
        self._who = "an Envoy"
        self._subscribed = False
        self._told: str | None = None
        self._nonce = ""
        self._nonces = itertools.count(1)

    def next_response(self) -> DiscoveryResponse | None:
        """The response to send now; None if this Envoy has the present endpoints, or asked for none."""
        current = self._publication.response
        if current is None or not self._subscribed or self._told == current.version_info:
            return None
        answer = DiscoveryResponse()
        answer.CopyFrom(current)
        answer.nonce = self._nonce = str(next(self._nonces))
        self._told = current.version_info
        return answer

    def receive(self, request: DiscoveryRequest) -> None:
        """The Envoy subscribes, acknowledges, refuses, or wants nothing any more."""
        if request.node.id:  # Envoy may send it in the first request only
            self._who = quoted(request.node.id, 100)
        if request.response_nonce and request.response_nonce != self._nonce:
            return  # it answers an older response than the last one (xds_protocol, "ACK, NACK, and resource type instance version")
        limited, cluster = self._publication.limited_log, self._publication.cluster
        if request.HasField("error_detail"):
            why = quoted(request.error_detail.message, 500)
            limited.log(
                logging.ERROR, "refused", "%s refused the endpoints and keeps what it had: %s", self._who, why
            )
        names = list(request.resource_names)
        wanted = not names or cluster in names
        if wanted and not self._subscribed:
            self._told = None
            self._publication.arrivals_log.info("asks", "%s asks for the endpoints", self._who)
        if not wanted and not request.response_nonce:
            limited.warning(
                "cluster", "%s asks for the cluster %s, and is told nothing: this is %s; see --cluster-name",
                self._who, quoted(names[0], 100), cluster,
            )  # fmt: skip
        self._subscribed = wanted


def _encode(cluster: str, endpoints: Iterable[LbEndpoint]) -> bytes:
    """The ClusterLoadAssignment, as `resource` has it in JSON."""
    named = ClusterLoadAssignment(cluster_name=cluster)
    for zone, members in itertools.groupby(endpoints, key=lambda endpoint: endpoint.zone):
        locality = named.endpoints.add()
        if zone:
            locality.locality.zone = zone
        for member in members:
            told = locality.lb_endpoints.add()
            if member.health in _HEALTH:
                told.health_status = _HEALTH[member.health]
            address = told.endpoint.address.socket_address
            address.address, address.port_value = member.address, member.port
    return named.SerializeToString()
