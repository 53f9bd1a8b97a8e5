"""Applies a configuration while requests are under way: all of it at once, or nothing of it."""

import asyncio
import logging
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeVar

from adsum.config.problems import ConfigError
from adsum.errors import os_reason
from epp.config.data_layer import PageTls
from epp.config.metric_flags import with_metrics
from epp.config.picker_config import PickerConfig, build_config, parse_config
from epp.config.settings import LEAST_INTERVAL, Settings
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint_document import EndpointDefaults
from epp.scheduling.director import Director
from epp.scheduling.policy import Policy
from epp.scheduling.scheduler import Scheduler
from epp.scraping.model_lists import ModelListRules, ModelLists
from epp.scraping.schedule import ScrapeIntervals
from epp.scraping.scraper import Scraper, ScrapeSettings
from epp.telemetry.plugin_metrics import PluginDurations

T = TypeVar("T")

log = logging.getLogger(__name__)


class Scraping(NamedTuple):
    """How metrics pages are read. `settings` None: they are not."""

    settings: ScrapeSettings | None
    tls: ssl.SSLContext | None = None


@dataclass(frozen=True, slots=True)
class ConfiguredParts:
    """The parts of a running picker that a configuration decides. `policy`: the operator's rules, and those of the file.
    `serve`: uses it for the exchanges that begin from now on.
    """

    director: Director
    datastore: Datastore
    scraper: Scraper
    model_lists: ModelLists
    policy: Callable[[PickerConfig], Policy]
    serve: Callable[[PickerConfig], None]


class Reconfiguration:
    """`config` is in force. Its plugins stay, with what they have learnt, where the new file has them unchanged."""

    def __init__(
        self,
        settings: Settings,
        config: PickerConfig,
        parts: ConfiguredParts,
        durations: PluginDurations,
        rng: random.Random,
    ) -> None:
        self._settings = settings
        self._config = config
        self._parts = parts
        self._durations = durations
        self._rng = rng

    async def prepare(self, text: str) -> Callable[[], None]:
        """Build what `text` describes; the returned function applies it and raises nothing.

        A thread parses it: PyYAML takes a second for a large file. The parts are built here, since some are in use.

        Raises ConfigError, another ValueError, or OSError for a file that `text` names.
        """
        settings = self._settings
        parsed = await asyncio.to_thread(parse_config, text)
        staleness, before = settings.metrics_staleness_threshold, self._config.plugins
        config = build_config(parsed, rng=self._rng, staleness=staleness, before=before)
        config = with_metrics(config, settings.metric_names)
        self._check_unchanged(config)
        scheduler = scheduler_of(config, settings, self._durations)
        self._teach(scheduler)
        same_pages = (config.metrics, config.engines) == (self._config.metrics, self._config.engines)
        scraping = None if same_pages else scraping_of(config, settings)
        models = None if config.models == self._config.models else model_requests_of(config)
        return partial(self._put_into_force, config, scheduler, scraping, models)

    def _check_unchanged(self, config: PickerConfig) -> None:
        before = self._config
        cannot = "cannot change while the picker runs; restart it, or leave this as it was"
        if config.file_discovery != before.file_discovery:
            raise ConfigError("dataLayer.discovery", f"the source of workers {cannot}")
        if config.attributes != before.attributes:
            raise ConfigError(
                "plugins: core-metrics-extractor", f"the attributeKeys of customMetrics {cannot}"
            )

    def _teach(self, scheduler: Scheduler) -> None:
        """Tell data producers that are new what the others know: the sizes of caches."""
        store, known = self._parts.datastore, self._parts.director.producers
        for producer in scheduler.producers:
            if not any(producer is one for one in known):
                for endpoint in store.endpoints:
                    if (tokens := store.cache_tokens(endpoint)) is not None:
                        producer.sized(endpoint, tokens)

    def _put_into_force(
        self,
        config: PickerConfig,
        scheduler: Scheduler,
        scraping: Scraping | None,
        models: "ModelRequests | None",
    ) -> None:
        parts = self._parts
        parts.director.reconfigure(scheduler, config.detector, parts.policy(config))
        parts.serve(config)
        if scraping is not None:
            parts.scraper.reconfigure(scraping.settings, scraping.tls)
        if models is not None:
            models.use(parts.model_lists, parts.scraper)
        self._config = config
        parts.datastore.reread(defaults_of(config, self._settings))
        for warning in config.warnings:
            log.warning("%s", warning)


class ModelRequests(NamedTuple):
    """How workers are asked for their models. `tls` None: as for their metrics pages."""

    rules: ModelListRules
    tls: ssl.SSLContext | None

    def use(self, lists: ModelLists, scraper: Scraper) -> None:
        own = self.tls
        lists.rules = self.rules
        lists.tls = (lambda: scraper.tls) if own is None else (lambda: own)


def model_requests_of(config: PickerConfig) -> ModelRequests:
    """Raises ConfigError for certificates that cannot be read."""
    source = config.models
    if source is None:
        return ModelRequests(ModelListRules(), None)
    rules = ModelListRules(interval=source.interval, scheme=source.scheme, path=source.path)
    if source.scheme != "https":
        return ModelRequests(rules, None)
    return ModelRequests(rules, _context_of(source.context, source, "models-data-source"))


def _context_of(make: Callable[[], T], source: PageTls, plugin: str) -> T:
    try:
        return make()
    except OSError as error:
        named = (source.ca_cert_path, source.client_cert_path, source.client_key_path)
        files = " or ".join(path for path in named if path) or "the system's certificates"
        problem = f"{files} cannot be used: {os_reason(error)}; expected PEM files that this user can read"
        raise ConfigError(f"plugins: {plugin}: parameters", problem) from error


def scheduler_of(config: PickerConfig, settings: Settings, durations: PluginDurations) -> Scheduler:
    scheduler = config.scheduler.with_reported_scores() if settings.emit_endpoint_scores else config.scheduler
    durations.expect(scheduler)
    return scheduler


def defaults_of(config: PickerConfig, settings: Settings) -> EndpointDefaults:
    return replace(config.defaults, serving_port_name=settings.serving_port_name)


def scraping_of(config: PickerConfig, settings: Settings) -> Scraping:
    """Raises ConfigError for certificates that cannot be read."""
    source = config.metrics
    if source is None:
        return Scraping(None)
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
    return Scraping(ScrapeSettings(intervals=intervals, engines=config.engines), tls)
