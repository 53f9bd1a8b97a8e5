"""The composition root: builds a picker from Settings, opens its ports, and drains it."""

import asyncio
import logging
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aiohttp import web
from prometheus_client import CollectorRegistry

import discovery
from adsum.config.problems import ConfigError
from adsum.serving.sockets import ListenError
from adsum.tasks import ResourceOwner
from adsum.tracing.opening import Tracing
from discovery.opening import default_url
from epp.config.live_config import LiveConfig
from epp.config.metric_flags import with_metrics
from epp.config.picker_config import PickerConfig, load_config
from epp.config.settings import LAME_DUCK, Settings
from epp.config.validate import read_text
from epp.config.worker_source import WorkerSource, asks_for_tokens, choose_source, metrics_pool_name
from epp.decisions.query import DecisionReader
from epp.decisions.recorder import PickRecorder
from epp.decisions.ring import DecisionRing
from epp.decisions.spans import PickSpans
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Endpoint, EndpointPool
from epp.endpoints.worker_metrics import WORKER_METRICS
from epp.ext_proc.exchange import Exchange
from epp.ext_proc.exchange_settings import ExchangeSettings
from epp.ext_proc.response_body import EarlyEnds
from epp.health import Health
from epp.outlier_watch import OutlierWatch
from epp.queueing import Queueing
from epp.reconfiguration import (
    ConfiguredParts,
    Reconfiguration,
    defaults_of,
    model_requests_of,
    scheduler_of,
    scraping_of,
)
from epp.request.body import MemoryBudget
from epp.request.model_rewrite import ModelRewrites
from epp.request.subset import Subset
from epp.scheduling.decision import Decision
from epp.scheduling.director import Director
from epp.scheduling.plugin import AdmissionController
from epp.scheduling.policy import Policy
from epp.scraping.model_lists import ModelListRules, ModelLists
from epp.scraping.scraper import Scraper
from epp.telemetry import metrics_port
from epp.telemetry import pages as status
from epp.telemetry.counters import Telemetry, TimedDirector, TimedScheduling
from epp.telemetry.decision_pages import DecisionPages, ExplainPage
from epp.telemetry.picker_metrics import BuildInfo, ConfigGauges, RewriteDecisions, StreamCounts
from epp.telemetry.plugin_metrics import PluginDurations, PrefixMetrics, prefix_credits
from epp.telemetry.pool_metrics import (
    DiscoveryMetrics,
    InFlightMetrics,
    OutlierMetrics,
    PoolGauges,
    ScrapeErrorCounts,
)
from epp.timers import dispatch_waiting, expire_bodies
from epp.web.picker_page import PickerPage, PickerParts
from epp.wire.certificate import CertificateError
from epp.wire.endpoint_assignment import publish_endpoints
from epp.wire.opening import grpc_address, open_transport
from epp.wire.transport import ListenAddress, Listener, Transport
from epp.worker_discovery import WorkerDiscovery

if TYPE_CHECKING:
    from epp.kubernetes.pool_resources import PoolResources

INPUT_ERRORS = (ConfigError, CertificateError, ValueError)
"""Errors in the command line or in a file that it names."""
FAILURES = (discovery.AdsumError, OSError)
"""Errors of the environment: discovery, ports, files."""

RECENT = 5.0
"""Seconds within which a data plane that uses this picker sends a stream or a health check."""

log = logging.getLogger(__name__)


class PickerServer(ResourceOwner):
    """An async context manager; once entered, workers are known and ports open. Health is SERVING, if there is the pool.

    Entering raises INPUT_ERRORS and FAILURES. `admission` None: requests are dispatched at once, or rejected while the
    pool is saturated.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
        admission: AdmissionController | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._health = Health(clock)
        self._pool_name = metrics_pool_name(settings, os.environ)
        self._telemetry = Telemetry(pool_name=self._pool_name)
        self._plugin_durations = PluginDurations()
        self._rewrites = ModelRewrites()
        self._admission = admission
        self._decisions: DecisionRing | None = None
        self._objectives = dict(settings.objectives)
        self._resources: PoolResources | None = None
        self._live_config: LiveConfig | None = None
        self._scraper: Scraper | None = None
        self._tracing = Tracing("llm-d-epp", "adsum.epp")

    @property
    def ready_line(self) -> str:
        """One line for programs: the address of each port."""
        ports = f"grpc={self._listener.address} health={self._health_listener.address} metrics={self._pages.metrics}"
        debug = self._pages.debug
        return f"ready {ports}" + (f" debug={debug}" if debug else "")

    def reread_config(self) -> None:
        """Have the configuration file read now, if there is one. For SIGHUP."""
        if self._live_config is None:
            log.info("no configuration file is read again: --config-file names none")
        else:
            self._live_config.trigger()

    async def drain(self) -> None:
        """Become NOT_SERVING, serve until data planes notice, then close streams (docs/shutdown.md).

        Answered streams end, requests that wait for admission are rejected, and the others get the rest of the drain
        timeout. The wait is skipped if no data plane sent anything for RECENT seconds.
        """
        self._health.set_serving(False)
        came_at = max(self._transport.opened_at, self._health.asked_at)
        lame_duck = min(LAME_DUCK, self._settings.drain_timeout) if self._clock() - came_at < RECENT else 0.0
        log.info(
            "draining: serving for %g s more, until data planes use another picker; %d streams are open",
            lame_duck,
            self._transport.open_streams,
        )
        await asyncio.sleep(lame_duck)
        self._transport.drain()
        self._director.waiting.drain(self._clock())
        self._health.close()
        await self._listener.drain(self._settings.drain_timeout - lame_duck)

    async def _open(self) -> None:
        settings = self._settings
        rng = random.Random()
        config = self._load_config(rng)
        if settings.tracing:
            await self._stack.enter_async_context(self._tracing)
        source = choose_source(settings, config.file_discovery, os.environ)
        if source.ignored_flags:
            log.warning(
                "flags without effect with this source of workers: %s", ", ".join(source.ignored_flags)
            )
        address = grpc_address(settings, self._start)
        self._datastore = Datastore(defaults_of(config, settings), (*WORKER_METRICS, *config.attributes))
        self._open_director(config, rng)
        self._workers = WorkerDiscovery(source, settings, self._datastore)
        await self._open_status(source)
        self._transport = self._open_transport(config)
        health = ListenAddress(settings.host, settings.grpc_health_port)
        self._health_listener = await self._listen("--grpc-health-port", health, processing=False)
        await self._open_pool_resources(source)
        await self._stack.enter_async_context(self._workers)
        self.tasks += self._workers.tasks
        self._open_scraper(config, rng)
        self._start(publish_endpoints(self._datastore, self._transport.assignments))
        self._listener = await self._listen("--grpc-port", address, processing=True)
        self._stack.callback(self._health.close)
        self._health.set_serving(True)

    def _open_director(self, config: PickerConfig, rng: random.Random) -> None:
        policy, scheduler = self._policy(config), scheduler_of(config, self._settings, self._plugin_durations)
        self._director = Director(self._datastore, scheduler, config.detector, policy, rng, self._admission)
        self._decisions = DecisionRing(self._settings.decisions) if self._settings.decisions else None
        spans = PickSpans(time.perf_counter, time.time_ns)
        readers = (self._plugin_durations.read, spans.read)
        self._director.decisions = PickRecorder(self._decisions, readers, time.perf_counter)
        memory = self._settings.max_buffered_bytes
        self._queueing = Queueing(self._director, self._datastore, self._telemetry, memory, self._clock)
        self._use_queueing(config)
        self._outliers = OutlierWatch(self._director, self._datastore, self._clock, rng)
        self._outliers.use(config.outliers, config.slow_start)
        self._start(self._outliers.run())
        turns = self._telemetry.flow_control.turns
        self._start(dispatch_waiting(self._director, self._clock, turns.observe))
        self._start(self._queueing.log_waits())

    def _use_queueing(self, config: PickerConfig) -> None:
        if self._admission is None:
            self._queueing.use(config)

    def _policy(self, config: PickerConfig) -> Policy:
        return Policy(
            objectives=self._objectives,
            models=self._settings.models,
            passthrough=config.passthrough,
            rewrites=self._rewrites,
            models_endpoint=self._settings.models_endpoint,
            fairness_headers=config.fairness_headers,
        )

    def _open_transport(self, config: PickerConfig) -> Transport:
        settings = self._settings
        director = TimedDirector(
            self._director, self._telemetry.scheduled, self._telemetry.enqueued, time.perf_counter
        )
        timed = TimedScheduling(self._director, self._telemetry.scheduled, time.perf_counter)
        self._director.waiting.scheduler = timed
        use_subset_hint = not settings.disable_endpoint_subset_filter
        self._exchange_settings = ExchangeSettings(
            settings.protocol_version,
            settings.max_body_bytes,
            use_subset_hint,
            response_readers=(self._telemetry.read_answer,) if settings.usage_metrics else (),
            passing_readers=() if settings.usage_metrics else (self._telemetry.read_usage,),
            response_headers=config.response_headers,
            early_ends=_early_ends(config),
            tracer=self._tracing.tracer,
        )
        budget = MemoryBudget(settings.max_buffered_bytes)

        def exchange() -> Exchange:
            return Exchange(director, self._exchange_settings, self._telemetry, budget)

        if settings.body_timeout:
            self._start(expire_bodies(budget, settings.body_timeout, self._clock))
        streams = StreamCounts(lambda: self._transport.open_streams)
        if settings.enable_grpc_stream_metrics:
            self._telemetry.registry.register(streams)
        stream_ended = streams.ended if settings.enable_grpc_stream_metrics else None
        return open_transport(settings.transport, exchange, self._health, budget, self._clock, stream_ended)

    def _serve(self, config: PickerConfig) -> None:
        self._use_queueing(config)
        self._outliers.use(config.outliers, config.slow_start)
        self._exchange_settings = replace(
            self._exchange_settings, response_headers=config.response_headers, early_ends=_early_ends(config)
        )

    def _load_config(self, rng: random.Random) -> PickerConfig:
        settings = self._settings
        path, text = settings.config_file, settings.config_text
        if path is not None:
            text = read_text(path)
            self._live_config = LiveConfig(path, text)
        try:
            config = load_config(text, rng=rng, staleness=settings.metrics_staleness_threshold)
        except ConfigError as error:
            raise error.in_file("--config-text" if path is None else path) from error
        config = with_metrics(config, settings.metric_names)
        for warning in config.warnings:
            log.warning("%s", warning)
        return config

    async def _listen(self, flag: str, address: ListenAddress, *, processing: bool) -> Listener:
        try:
            return await self._stack.enter_async_context(
                self._transport.listener(address, processing=processing)
            )
        except ListenError as error:
            raise ListenError(f"{error} ({flag})") from error

    async def _open_status(self, source: WorkerSource) -> None:
        settings = self._settings
        decisions = RewriteDecisions()
        self._rewrites.on_decision = decisions.count
        self._telemetry.registry.register(decisions)
        self._telemetry.registry.register(BuildInfo())
        if self._live_config is not None:
            self._telemetry.registry.register(ConfigGauges(self._live_config))
        stale_after = settings.metrics_staleness_threshold
        self._telemetry.registry.register(self._plugin_durations)
        gauges = CollectorRegistry()  # of what is computed on the event loop
        gauges.register(PoolGauges(self._pool_name, self._pool, self._queueing.saturations, stale_after))
        gauges.register(PrefixMetrics(lambda: self._director.producers))
        gauges.register(InFlightMetrics(lambda: self._director.producers))
        gauges.register(OutlierMetrics(self._pool_name, self._outliers))
        gauges.register(DiscoveryMetrics(self._workers.metrics))
        for collector in self._queueing.gauges(self._pool_name):
            gauges.register(collector)
        self._picker_page = self._open_page()
        shown = self._describe_endpoints, self._describe_status, self._picker_page.page
        app = status.application(self._telemetry.registry, gauges, *shown)
        debug_app = web.Application()
        status.add_debug_routes(debug_app, *shown)
        reader = self._decision_reader()
        kept, explained = DecisionPages(reader), ExplainPage(self._explain, reader)
        for one in (app, debug_app):
            kept.add_to(one)
            explained.add_to(one)
        reviewed_at = (source.url or default_url()) if asks_for_tokens(settings, source) else None
        ports = metrics_port.serve_metrics(app, settings, self._start, reviewed_at, debug_app)
        self._pages = await self._stack.enter_async_context(ports)

    def _open_page(self) -> PickerPage:
        page = PickerPage(
            PickerParts(
                name=self._pool_name,
                pool=self._pool,
                engine=self._engine,
                engines_detected=lambda: 0 if self._scraper is None else self._scraper.engines_detected,
                saturation=lambda: self._queueing.saturation,
                status=self._describe_status,
                absent=self._workers.absent,
                outliers=lambda: self._outliers.avoided,
                flow_control=lambda: self._queueing.controller,
                decisions=self._decisions,
                picks=self._telemetry.picks,
                credits=lambda: prefix_credits(self._director.producers),
                stale_after=self._settings.metrics_staleness_threshold,
                clock=self._clock,
            )
        )
        self._workers.on_event.append(page.discovered)
        self._start(page.run())
        return page

    def _describe_endpoints(self) -> dict[str, Any]:
        return status.describe(self._pool(), self._queueing.saturation, self._engine)

    def _engine(self, endpoint: Endpoint) -> str | None:
        return endpoint.engine if self._scraper is None else self._scraper.engine(endpoint)

    def _decision_reader(self) -> DecisionReader:
        ring = DecisionRing(0) if self._decisions is None else self._decisions
        return DecisionReader(ring, self._clock, time.time)

    def _explain(self, headers: Mapping[str, str], body: bytes | None, subset: Subset | None) -> Decision:
        return self._director.explain(headers, body, subset, self._clock())

    def _describe_status(self) -> dict[str, Any]:
        config, resources = self._live_config, self._resources
        return {
            **self._health.describe(),
            **self._workers.describe(),
            **self._outliers.describe(),
            **self._queueing.describe(),
            **({"tracing": self._tracing.describe()} if self._settings.tracing else {}),
            "config": None if config is None else config.describe(),
            **({} if resources is None else resources.describe()),
        }

    async def _open_pool_resources(self, source: WorkerSource) -> None:
        """Follow what Kubernetes has for an InferencePool, if the workers are one's."""
        url = source.url or default_url()
        if source.file is not None or not url.startswith("kubernetes:"):
            return
        from epp.kubernetes import pool_resources  # imports the Kubernetes transport

        on_pool, on_rules = self._health.withhold, self._rewrites.replace
        readers = pool_resources.ResourceReaders(on_pool, self._set_priorities, on_rules)
        resources = await pool_resources.open_pool_resources(url, readers, self._settings.grpc_port)
        if resources is not None:
            self._resources = await self._stack.enter_async_context(resources)
            self.tasks += resources.tasks

    def _set_priorities(self, by_objective: Mapping[str, int]) -> None:
        """An InferenceObjective counts before a flag of the same name."""
        self._objectives.clear()
        self._objectives.update({**self._settings.objectives, **by_objective})

    def _open_scraper(self, config: PickerConfig, rng: random.Random) -> None:
        scraping = scraping_of(config, self._settings)
        self._scraper = scraper = Scraper(self._datastore, scraping.settings, rng, tls=scraping.tls)
        self._telemetry.registry.register(ScrapeErrorCounts(scraper.errors))
        self._start(scraper.run())
        self._outliers.tls = lambda: scraper.tls
        models = ModelLists(self._datastore, ModelListRules(), rng)
        model_requests_of(config).use(models, scraper)
        self._start(models.run())
        if self._live_config is not None:
            parts = ConfiguredParts(
                self._director, self._datastore, scraper, models, self._policy, self._serve
            )
            change = Reconfiguration(self._settings, config, parts, self._plugin_durations, rng)
            self._start(self._live_config.run(change.prepare))

    def _pool(self) -> EndpointPool:
        return self._datastore.pool(self._clock())


def _early_ends(config: PickerConfig) -> EarlyEnds | None:
    return EarlyEnds() if config.detector.counts_in_flight else None
