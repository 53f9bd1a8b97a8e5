"""Reads what workers say of themselves, as the configuration in force says: their metrics pages, and the lists of their models."""

import logging
import random
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from adsum.config.problems import ConfigError
from adsum.errors import os_reason
from adsum.tasks import ResourceOwner
from epp.config.data_layer import PageTls
from epp.config.picker_config import PickerConfig
from epp.config.settings import LEAST_INTERVAL, Settings
from epp.endpoints.datastore import Datastore
from epp.scraping.model_lists import ModelListRules, ModelLists
from epp.scraping.schedule import ScrapeIntervals
from epp.scraping.scraper import Scraper, ScrapeSettings
from epp.telemetry.counters import Telemetry
from epp.telemetry.pool_metrics import ScrapeErrorCounts

T = TypeVar("T")

log = logging.getLogger(__name__)


class WorkerScraping(ResourceOwner):
    """An async context manager; once entered, the workers of `datastore` are asked. A `ConfiguredPart`.

    Raises ConfigError for certificates that cannot be read.
    """

    def __init__(
        self, settings: Settings, config: PickerConfig, datastore: Datastore, telemetry: Telemetry
    ) -> None:
        self._settings = settings
        self._config: PickerConfig | None = None
        rng = random.Random()
        self.scraper = Scraper(datastore, None, rng)
        self._models = ModelLists(datastore, ModelListRules(), rng)
        self.prepare(config)()
        telemetry.registry.register(ScrapeErrorCounts(self.scraper.errors))

    def prepare(self, config: PickerConfig) -> Callable[[], None]:
        before, changes = self._config, list[Callable[[], None]]()
        if before is None or (config.metrics, config.engines) != (before.metrics, before.engines):
            changes.append(partial(self.scraper.reconfigure, *_scraping(config, self._settings)))
        if before is None or config.models != before.models:
            changes.append(partial(self._ask_for_models, *_model_requests(config)))
        return partial(self._use, config, changes)

    async def _open(self) -> None:
        self._start(self.scraper.run())
        self._start(self._models.run())

    def _use(self, config: PickerConfig, changes: Sequence[Callable[[], None]]) -> None:
        self._config = config
        for change in changes:
            change()

    def _ask_for_models(self, rules: ModelListRules, tls: ssl.SSLContext | None) -> None:
        self._models.rules = rules
        self._models.tls = (lambda: self.scraper.tls) if tls is None else (lambda: tls)


def _scraping(
    config: PickerConfig, settings: Settings
) -> tuple[ScrapeSettings | None, ssl.SSLContext | None]:
    """How metrics pages are read; None: they are not."""
    source = config.metrics
    if source is None:
        return None, None
    interval = source.interval or settings.refresh_metrics_interval
    if interval is not None and interval < LEAST_INTERVAL:
        log.warning(
            "metrics are scraped every %g s, the least interval, not every %g s", LEAST_INTERVAL, interval
        )
        interval = LEAST_INTERVAL
    intervals = ScrapeIntervals() if interval is None else ScrapeIntervals.fixed(interval)
    tls = _context_of(source.tls, source, "metrics-data-source")
    if tls is not None and tls.verify_mode is ssl.CERT_NONE:  # the Go picker's default
        log.warning(
            "metrics pages are scraped over https without verifying certificates, so any server at a worker's address "
            "is trusted; set insecureSkipVerify: false or caCertPath to verify them"
        )
    return ScrapeSettings(intervals=intervals, engines=config.engines), tls


def _model_requests(config: PickerConfig) -> tuple[ModelListRules, ssl.SSLContext | None]:
    """How workers are asked for their models; without a context as for their metrics pages."""
    source = config.models
    if source is None:
        return ModelListRules(), None
    rules = ModelListRules(interval=source.interval, scheme=source.scheme, path=source.path)
    tls = _context_of(source.context, source, "models-data-source") if source.scheme == "https" else None
    return rules, tls


def _context_of(make: Callable[[], T], source: PageTls, plugin: str) -> T:
    try:
        return make()
    except OSError as error:
        named = (source.ca_cert_path, source.client_cert_path, source.client_key_path)
        files = " or ".join(path for path in named if path) or "the system's certificates"
        problem = f"{files} cannot be used: {os_reason(error)}; expected PEM files that this user can read"
        raise ConfigError(f"plugins: {plugin}: parameters", problem) from error
