"""The composition root: builds the parts of a picker from Settings, opens them in order, and drains them."""

import logging
import os
import time
from collections.abc import Callable
from typing import Any

import discovery
from adsum.config.problems import ConfigError
from adsum.tasks import ResourceOwner
from adsum.tracing.opening import Tracing
from discovery.opening import default_url
from epp.config.picker_config import PickerConfig
from epp.config.settings import Settings
from epp.config.sibling_processes import Siblings
from epp.config.worker_source import WorkerSource, choose_source, metrics_pool_name
from epp.configuration import Configuration
from epp.data_plane_ports import DataPlanePorts
from epp.endpoints.datastore import Datastore
from epp.endpoints.worker_facts import FactCodec
from epp.endpoints.worker_metrics import WORKER_METRICS
from epp.kv_events.feed import KvEventFeed
from epp.pages import PickerPages
from epp.picking import Picking
from epp.telemetry.counters import Telemetry
from epp.wire.certificate import CertificateError
from epp.wire.endpoint_assignment import publish_endpoints
from epp.worker_discovery import WorkerDiscovery, endpoint_defaults
from epp.worker_scraping import WorkerScraping

INPUT_ERRORS = (ConfigError, CertificateError, ValueError)
"""Errors in the command line or in a file that it names."""
FAILURES = (discovery.AdsumError, OSError)
"""Errors of the environment: discovery, ports, files."""

log = logging.getLogger(__name__)


class PickerServer(ResourceOwner):
    """An async context manager; once entered, workers are known and ports open. Health is SERVING, if there is the pool.

    Entering raises INPUT_ERRORS and FAILURES. `siblings`: this is one of several processes.
    """

    def __init__(self, settings: Settings, siblings: Siblings | None = None) -> None:
        self._settings = settings if siblings is None else siblings.share(settings)
        self._siblings = siblings
        self._configuration: Configuration | None = None

    @property
    def ready_line(self) -> str:
        """One line for programs: the address of each port."""
        return f"ready {self._ports.addresses} {self._pages.addresses}"

    def reread_config(self) -> None:
        """Have the configuration file read now, if there is one. For SIGHUP."""
        if self._configuration is not None:
            self._configuration.reread()

    async def drain(self) -> None:
        """Serve until data planes use another picker, then close streams; see `DataPlanePorts.drain`."""
        await self._ports.drain()

    async def _open(self) -> None:
        settings, clock = self._settings, time.monotonic
        telemetry = Telemetry(pool_name=metrics_pool_name(settings, os.environ))
        self._configuration = configuration = Configuration(settings, telemetry)
        config, tracing = configuration.config, Tracing("llm-d-epp", "adsum.epp")
        if settings.tracing:
            await self._stack.enter_async_context(tracing)
        source = self._choose_source(config)
        datastore = Datastore(endpoint_defaults(config, settings), (*WORKER_METRICS, *config.attributes))
        picking = Picking(settings, config, datastore, telemetry, clock)
        ports = self._ports = DataPlanePorts(
            settings, config, picking, telemetry, tracing.tracer, self._siblings
        )
        workers = WorkerDiscovery(source, settings, datastore)
        scraping = WorkerScraping(settings, config, datastore, telemetry)
        picking.outliers.tls = lambda: scraping.scraper.tls
        kv_events = KvEventFeed(
            config, datastore, lambda: picking.director.waiting.wake(), lambda: scraping.scraper.tls
        )
        configuration.parts = picking, ports, scraping, workers, kv_events
        shown = ports, workers, picking.outliers, picking.queueing, kv_events, configuration
        described = [part.describe for part in shown]
        if settings.tracing:
            described.append(lambda: {"tracing": tracing.describe()})
        pages = self._pages = PickerPages(
            settings, telemetry, picking, workers, scraping.scraper, described, self._siblings
        )
        await self._enter(picking, pages, ports)
        described += await self._follow_pool(source, picking)
        described += await self._follow_workers(workers, scraping, datastore, config)
        await self._enter(kv_events, configuration)
        if settings.peers is not None or self._siblings is not None:
            described += await self._meet_peers(configuration, picking, datastore, telemetry, kv_events)
        self._start(publish_endpoints(datastore, ports.transport.assignments))
        await self._stack.enter_async_context(ports.listening())

    def _choose_source(self, config: PickerConfig) -> WorkerSource:
        source = choose_source(self._settings, config.file_discovery, os.environ)
        if source.ignored_flags:
            ignored = ", ".join(source.ignored_flags)
            log.warning("flags without effect with this source of workers: %s", ignored)
        return source

    async def _follow_workers(
        self, workers: WorkerDiscovery, scraping: WorkerScraping, datastore: Datastore, config: PickerConfig
    ) -> list[Callable[[], dict[str, Any]]]:
        """By this process, or by another one of the picker. Returns what there is of that for /status."""
        if self._siblings is None:
            await self._enter(workers, scraping)
            return []
        from epp.worker_sharing import WorkerSharing  # other pickers do without

        codec = FactCodec((*WORKER_METRICS, *config.attributes))
        sharing = WorkerSharing(self._siblings, datastore, codec, workers, scraping)
        await self._enter(sharing)
        return [sharing.describe]

    async def _meet_peers(
        self,
        configuration: Configuration,
        picking: Picking,
        datastore: Datastore,
        telemetry: Telemetry,
        kv_events: KvEventFeed,
    ) -> list[Callable[[], dict[str, Any]]]:
        """Count what other pickers send, and the other processes of this one. Returns what there is of them for /status."""
        from epp.peers.peer_metrics import PeerMetrics
        from epp.peers.peering import Peers  # imports grpc

        peers = Peers(self._settings, self._siblings, picking, datastore, self._ports.outcomes, kv_events)
        await self._enter(peers)
        telemetry.gauges.register(PeerMetrics(peers.connections))
        configuration.parts = *configuration.parts, peers
        return [peers.connections.describe, *([] if self._siblings is None else [self._siblings.describe])]

    async def _follow_pool(
        self, source: WorkerSource, picking: Picking
    ) -> list[Callable[[], dict[str, Any]]]:
        """Follow what Kubernetes has for an InferencePool, if the workers are one's. Returns what it has for /status."""
        url = source.url or default_url()
        if source.file is not None or not url.startswith("kubernetes:"):
            return []
        from epp.kubernetes import pool_resources  # imports the Kubernetes transport

        readers = pool_resources.ResourceReaders(
            self._ports.health.withhold, picking.set_priorities, picking.rewrites.replace
        )
        resources = await pool_resources.open_pool_resources(url, readers, self._settings.grpc_port)
        if resources is None:
            return []
        await self._enter(resources)
        return [resources.describe]
