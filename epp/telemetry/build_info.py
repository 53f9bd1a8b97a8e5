"""Which build runs, under the Go picker's metric names."""

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from epp.telemetry.labels import EXTENSION_PREFIX, PREFIX


class BuildInfo(Collector):
    """`build_ref` is adsum's version; a package does not know its commit, so that label is empty."""

    def __init__(self) -> None:
        try:
            self._version = version("adsum")
        except PackageNotFoundError:
            self._version = ""

    def collect(self) -> Iterator[Metric]:
        for prefix in (PREFIX, EXTENSION_PREFIX):
            family = GaugeMetricFamily(
                prefix + "info", "The build that runs.", labels=("commit", "build_ref")
            )
            family.add_metric(("", self._version), 1)
            yield family
