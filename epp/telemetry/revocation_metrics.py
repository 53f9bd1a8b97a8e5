"""What became of requests in flight that were taken back, under the Go picker's metric names. Computed on the event loop."""

from collections.abc import Callable, Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from epp.flow_control.eviction import InFlightEviction
from epp.telemetry.labels import PREFIX

_PREFIX = PREFIX + "flow_control_"


class RevocationMetrics(Collector):
    """`eviction` None: requests in flight are not taken back, and there is nothing to show."""

    def __init__(
        self, pool_name: str, eviction: Callable[[], InFlightEviction | None], clock: Callable[[], float]
    ) -> None:
        self._pool_name = pool_name
        self._eviction = eviction
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        eviction = self._eviction()
        if eviction is None:
            return
        found = eviction.revocations
        issued = CounterMetricFamily(
            _PREFIX + "revocations_issued",
            "Requests that were taken back, by the priority that needed room.",
            labels=("priority", "inference_pool"),
        )
        for priority, count in found.issued.items():
            issued.add_metric((str(priority), self._pool_name), count)
        ended = CounterMetricFamily(
            _PREFIX + "revocations", "The same, by what became of them.", labels=("outcome", "inference_pool")
        )
        ended.add_metric(("confirmed", self._pool_name), found.confirmed)
        ended.add_metric(("timed_out", self._pool_name), found.timed_out)
        seconds = HistogramMetricFamily(
            _PREFIX + "revocation_confirmation_seconds",
            "Until the stream of such a request ended.",
            labels=("inference_pool",),
        )
        seconds.add_metric((self._pool_name,), found.durations.buckets(), found.durations.total)
        yield from (issued, ended, seconds)
        yield self._gauge("reclaim_target", "What the last decision wanted to free.", found.target)
        pending = eviction.pending(self._clock())
        yield self._gauge("pending_reclaim", "What was taken back and is not known to be free.", pending)

    def _gauge(self, name: str, help_text: str, value: float) -> Metric:
        family = GaugeMetricFamily(
            _PREFIX + name, f"{help_text} As a part of the saturation.", labels=("inference_pool",)
        )
        family.add_metric((self._pool_name,), value)
        return family
