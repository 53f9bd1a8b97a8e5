"""Shows failed scrapes under the Go picker's metric names, current and older."""

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from epp.scraping.scraper import ScrapeErrors
from epp.telemetry.labels import PREFIX

_SOURCE, _EXTRACTOR = "metrics-data-source", "core-metrics-extractor"


class ScrapeErrorCounts(Collector):
    def __init__(self, errors: ScrapeErrors) -> None:
        self._errors = errors

    def collect(self) -> Iterator[Metric]:
        for prefix in (PREFIX, "llm_d_inference_scheduler_"):
            fetch = CounterMetricFamily(
                prefix + "datalayer_poll_errors", "Workers' pages that did not come.", labels=("source_type",)
            )
            fetch.add_metric((_SOURCE,), self._errors.fetch)
            read = CounterMetricFamily(
                prefix + "datalayer_extract_errors",
                "Workers' pages that came and could not be used.",
                labels=("source_type", "extractor_type"),
            )
            read.add_metric((_SOURCE, _EXTRACTOR), self._errors.read)
            yield from (fetch, read)
