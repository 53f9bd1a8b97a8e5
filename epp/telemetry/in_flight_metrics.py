"""What is in flight to each endpoint, by whom, under the Go picker's metric names. Computed on the event loop."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from epp.request.inference_request import DEFAULT_FAIRNESS_ID
from epp.scheduling.in_flight_load.producer import InFlightLoadProducer, LabelledLoad, LoadLabels
from epp.telemetry.labels import PREFIX, label_value

_LABELS: Final = ("endpoint_name", "namespace", "producer_name", "fairness_id", "priority")
_NOTHING: Final = LabelledLoad()


class InFlightMetrics(Collector):
    """`producers`: those of now. An endpoint without anything in flight has one sample, 0."""

    def __init__(self, producers: Callable[[], Sequence[InFlightLoadProducer]]) -> None:
        self._producers = producers

    def collect(self) -> Iterator[Metric]:
        found = self._producers()
        if not found:
            return
        requests = GaugeMetricFamily(
            PREFIX + "inflight_requests", "Requests sent there that have not ended.", labels=_LABELS
        )
        tokens = GaugeMetricFamily(
            PREFIX + "inflight_tokens", "Tokens sent there that are not computed yet.", labels=_LABELS
        )
        for producer in found:
            for labels, load in _samples(producer):
                requests.add_metric(labels, load.requests)
                tokens.add_metric(labels, load.tokens)
        yield from (requests, tokens)


def _samples(producer: InFlightLoadProducer) -> Iterator[tuple[Sequence[str], LabelledLoad]]:
    namespaces = {endpoint.key: endpoint.namespace for endpoint in producer.endpoints}
    loads: dict[LoadLabels, LabelledLoad] = dict(producer.labelled)
    busy = {key for key, _, _ in loads}
    loads |= {(key, DEFAULT_FAIRNESS_ID, 0): _NOTHING for key in namespaces if key not in busy}
    for (key, fairness_id, priority), load in loads.items():
        name = key[0]
        yield (name, namespaces.get(key, ""), producer.name, label_value(fairness_id), str(priority)), load
