"""What is in flight to each endpoint, by whom, under the Go picker's metric names. Computed on the event loop."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from epp.request.inference_request import DEFAULT_FAIRNESS_ID
from epp.scheduling.in_flight_load.producer import InFlightLoadProducer
from epp.scheduling.plugin import DataProducer
from epp.telemetry.labels import PREFIX, label_value

_LABELS: Final = ("endpoint_name", "namespace", "producer_name", "fairness_id", "priority")


class InFlightMetrics(Collector):
    """`producers`: those of now. An endpoint has one sample, 0, once all that was sent there has ended."""

    def __init__(self, producers: Callable[[], Sequence[DataProducer]]) -> None:
        self._producers = producers

    def collect(self) -> Iterator[Metric]:
        found = [one for one in self._producers() if isinstance(one, InFlightLoadProducer)]
        if not found:
            return
        requests = GaugeMetricFamily(
            PREFIX + "inflight_requests", "Requests sent there that have not ended.", labels=_LABELS
        )
        tokens = GaugeMetricFamily(
            PREFIX + "inflight_tokens", "Tokens sent there that are not computed yet.", labels=_LABELS
        )
        for producer in found:
            for labels, (count, size) in _samples(producer).items():
                requests.add_metric(labels, count)
                tokens.add_metric(labels, size)
        yield from (requests, tokens)


def _samples(producer: InFlightLoadProducer) -> Mapping[tuple[str, ...], tuple[int, int]]:
    """Requests and tokens by the values of the labels. Ids that are shown alike count together: one sample must not be there
    twice, and clients choose their fairness ids."""
    sums: dict[tuple[str, ...], tuple[int, int]] = {}
    for (name, namespace, fairness_id, priority), load in producer.labelled.items():
        labels = (name, namespace, producer.name, label_value(fairness_id), str(priority))
        requests, tokens = sums.get(labels, (0, 0))
        sums[labels] = requests + load.requests, tokens + load.tokens
    busy = {labels[:2] for labels in sums}
    for endpoint in producer.endpoints:
        if (endpoint.id, endpoint.namespace) not in busy:
            sums[endpoint.id, endpoint.namespace, producer.name, DEFAULT_FAIRNESS_ID, "0"] = 0, 0
    return sums
