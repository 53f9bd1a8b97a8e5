"""How full the queues of flow control are, under the Go picker's metric names. Computed on the event loop."""

from collections.abc import Callable, Iterator

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from epp.endpoints.endpoint import EndpointPool
from epp.flow_control.controller import FlowController
from epp.scheduling.saturation import UtilizationDetector
from epp.telemetry.labels import PREFIX


class BandGauges(Collector):
    """`controller` None: flow control is off, and there is nothing to show. `pool`: all endpoints, as of now.

    `detector`: the name of the saturation detector's plugin.
    """

    def __init__(
        self,
        pool_name: str,
        controller: Callable[[], FlowController | None],
        pool: Callable[[], EndpointPool],
        detector: Callable[[], str],
    ) -> None:
        self._pool_name = pool_name
        self._controller = controller
        self._pool = pool
        self._detector = detector

    def collect(self) -> Iterator[Metric]:
        controller = self._controller()
        if controller is None:
            return
        bands, settings = controller.bands, controller.settings
        requests, held = (self._of_bands(name) for name in ("requests", "bytes"))
        for band in bands:
            labels = (str(band.priority), self._pool_name)
            requests.add_metric(labels, len(band.waiting) / band.settings.max_requests)
            held.add_metric(labels, band.bytes / band.settings.max_bytes)
        yield from (requests, held)
        if settings.max_requests is not None:
            waiting = sum(len(band.waiting) for band in bands)
            yield self._of_all("requests", waiting / settings.max_requests)
        if settings.max_bytes is not None:
            yield self._of_all("bytes", sum(band.bytes for band in bands) / settings.max_bytes)
        if isinstance(controller.detector, UtilizationDetector):
            stale = GaugeMetricFamily(
                PREFIX + "flow_control_stale_endpoints",
                "Endpoints whose numbers are older than metricsStalenessThreshold, or unknown.",
                labels=("detector",),
            )
            stale.add_metric((self._detector(),), controller.detector.stale(self._pool()))
            yield stale

    def _of_bands(self, what: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(
            f"{PREFIX}flow_control_capacity_utilization_{what}",
            f"The share of a priority's limit in {what} that waits.",
            labels=("priority", "inference_pool"),
        )

    def _of_all(self, what: str, share: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(
            f"{PREFIX}flow_control_global_capacity_utilization_{what}",
            f"The share of the limit in {what} of all priorities together that waits.",
            labels=("inference_pool",),
        )
        family.add_metric((self._pool_name,), share)
        return family
