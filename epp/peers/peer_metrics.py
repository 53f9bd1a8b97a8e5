"""Puts on the metrics page what is known of the other pickers: how many are connected, how old their news is, and what it costs."""

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from adsum.metric_families import counter, gauge
from epp.peers.connections import PeerConnections
from epp.plugins.labels import PREFIX


class PeerMetrics(Collector):
    """To be read on the event loop."""

    def __init__(self, connections: PeerConnections) -> None:
        self._connections = connections

    def collect(self) -> Iterator[Metric]:
        links = list(self._connections.links.values())
        yield GaugeMetricFamily(
            PREFIX + "peers_connected", "Other pickers that tell what they send.", len(links)
        )
        silent = [((link.address,), link.silence) for link in links]
        yield gauge(PREFIX + "peer_silent_seconds", "Since a picker's last message.", ("peer",), silent)
        inflight = [((link.address,), len(link.subscriber)) for link in links]
        help_text = "Requests of a picker that have not ended."
        yield gauge(PREFIX + "peer_inflight_requests", help_text, ("peer",), inflight)
        messages = [
            (("in",), self._connections.bytes_in + sum(link.bytes_in for link in links)),
            (("out",), self._connections.bytes_out + sum(link.bytes_out for link in links)),
        ]
        yield counter(PREFIX + "peer_bytes", "Of messages between pickers.", ("direction",), messages)
        yield CounterMetricFamily(
            PREFIX + "peer_faults",
            "Connections that ended since what came made no sense.",
            self._connections.faults,
        )
