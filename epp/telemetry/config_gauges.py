"""Shows whether the configuration file is in force, and since when; the names are those of Prometheus and Alertmanager."""

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from epp.config.live_config import LiveConfig
from epp.telemetry.labels import PREFIX


class ConfigGauges(Collector):
    """Reads its numbers when the page is read."""

    def __init__(self, config: LiveConfig) -> None:
        self._config = config

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            PREFIX + "config_last_reload_successful",
            "Whether the configuration file, as it is now, is in force.",
            value=float(not self._config.problem),
        )
        yield GaugeMetricFamily(
            PREFIX + "config_last_reload_success_timestamp_seconds",
            "When the configuration in force was read, in seconds since the epoch.",
            value=self._config.in_force_since,
        )
