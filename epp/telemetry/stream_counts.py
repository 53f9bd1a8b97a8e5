"""Counts ext_proc streams under the Go picker's metric names, with --enable-grpc-stream-metrics."""

from collections.abc import Callable, Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from adsum.histogram import Histogram
from epp.telemetry.labels import PREFIX

_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 120, 300, 600)


class StreamCounts(Collector):
    """`open_streams`: how many there are now; may be called in any thread."""

    def __init__(self, open_streams: Callable[[], int]) -> None:
        self._open_streams = open_streams
        self._codes: dict[str, int] = {}
        self._durations = Histogram(_SECONDS)

    def ended(self, code: str, seconds: float) -> None:
        """An `epp.wire.transport.StreamEnded`."""
        self._codes[code] = self._codes.get(code, 0) + 1
        self._durations.observe(max(0.0, seconds))

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            PREFIX + "extproc_streams_inflight", "ext_proc streams that are open.", self._open_streams()
        )
        durations = HistogramMetricFamily(
            PREFIX + "extproc_stream_duration_seconds", "How long ext_proc streams were open."
        )
        durations.add_metric((), self._durations.buckets(), self._durations.total)
        yield durations
        ended = CounterMetricFamily(
            PREFIX + "extproc_streams", "ext_proc streams that ended, by their gRPC status.", labels=("code",)
        )
        for code, count in self._codes.copy().items():
            ended.add_metric((code,), count)
        yield ended
