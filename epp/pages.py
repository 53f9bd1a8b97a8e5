"""The pages of a picker on the metrics port and on --debug-address: metrics, /status, its page, decisions."""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from aiohttp import web

from adsum.tasks import ResourceOwner
from discovery.opening import default_url
from epp.config.settings import Settings
from epp.config.sibling_processes import Siblings
from epp.config.worker_source import asks_for_tokens
from epp.decisions.query import DecisionReader
from epp.decisions.ring import DecisionRing
from epp.picking import Picking
from epp.scraping.scraper import Scraper
from epp.telemetry import metrics_port
from epp.telemetry import pages as status
from epp.telemetry.counters import Telemetry
from epp.telemetry.decision_pages import DecisionPages, ExplainPage
from epp.telemetry.picker_metrics import BuildInfo
from epp.telemetry.pool_metrics import DiscoveryMetrics
from epp.web.picker_page import PickerPage, PickerParts
from epp.worker_discovery import WorkerDiscovery

if TYPE_CHECKING:  # imports aiohttp's client
    from epp.telemetry.sibling_pages import SiblingPages


@dataclass(eq=False)
class PickerPages(ResourceOwner):
    """An async context manager; once entered, the ports are open. `described`: what each part says for /status; may grow."""

    settings: Settings
    telemetry: Telemetry
    picking: Picking
    workers: WorkerDiscovery
    scraper: Scraper
    described: Sequence[Callable[[], Mapping[str, Any]]]
    siblings: Siblings | None = None

    @property
    def addresses(self) -> str:
        """For the ready line."""
        debug = self._ports.debug
        return f"metrics={self._ports.metrics}" + (f" debug={debug}" if debug else "")

    async def _open(self) -> None:
        registry, gauges = self.telemetry.registry, self.telemetry.gauges
        registry.register(BuildInfo())
        gauges.register(DiscoveryMetrics(self.workers.metrics))
        ring = DecisionRing(0) if self.picking.decisions is None else self.picking.decisions
        reader = DecisionReader(ring, self.picking.clock, time.time)
        siblings = await self._meet_siblings(ring, DecisionPages(reader))
        status_of_all = (
            partial(self._status_of_all, siblings) if siblings is not None else self._describe_status
        )
        shown = self._describe_endpoints, status_of_all, self._open_page(siblings).page
        merge = None if siblings is None else siblings.merge
        app, debug_app = status.application(registry, gauges, *shown, merge), web.Application()
        status.add_debug_routes(debug_app, *shown)
        kept = DecisionPages(reader, others=None if siblings is None else siblings.decided)
        explained = ExplainPage(self.picking.explain, reader)
        for one in (app, debug_app):
            kept.add_to(one)
            explained.add_to(one)
        source = self.workers.source
        reviewed_at = (source.url or default_url()) if asks_for_tokens(self.settings, source) else None
        handed = {} if self.siblings is None else self.siblings.ports
        ports = metrics_port.serve_metrics(app, self.settings, self._start, reviewed_at, debug_app, handed)
        self._ports = await self._stack.enter_async_context(ports)

    async def _meet_siblings(self, ring: DecisionRing, decisions: DecisionPages) -> "SiblingPages | None":
        if self.siblings is None:
            return None
        # aiohttp's client, which other pickers do without
        from epp.telemetry.sibling_pages import SiblingPages

        ring.sequences = self.siblings.sequence
        telemetry, picking = self.telemetry, self.picking
        pages = SiblingPages(
            self.siblings,
            secrets.token_hex(8),
            telemetry.registry,
            telemetry.gauges,
            telemetry.picks,
            picking.credits,
            decisions,
            self._describe_status,
        )
        await self._enter(pages)
        return pages

    def _open_page(self, siblings: "SiblingPages | None") -> PickerPage:
        picking = self.picking
        page = PickerPage(
            PickerParts(
                name=self.telemetry.pool_name,
                pool=picking.pool,
                engine=self.scraper.engine,
                engines_detected=lambda: self.scraper.engines_detected,
                saturation=lambda: picking.queueing.saturation,
                status=self._describe_status,
                absent=self.workers.absent,
                outliers=lambda: picking.outliers.avoided,
                flow_control=lambda: picking.queueing.controller,
                decisions=picking.decisions,
                picks=self.telemetry.picks,
                credits=picking.credits,
                stale_after=self.settings.metrics_staleness_threshold,
                clock=picking.clock,
                predicting=picking.predicting,
                cache_evidence=picking.cache_evidence,
                others=dict if siblings is None else siblings.sent,
                of_all=None if siblings is None else siblings.of_all,
            )
        )
        if siblings is not None:
            siblings.shared = page.shared
        self.workers.on_event.append(page.discovered)
        self._start(page.run())
        return page

    def _describe_endpoints(self) -> dict[str, Any]:
        picking, until = self.picking, self._describe_status()["outcomes"]["in_flight_until"]
        saturation, engine = picking.queueing.saturation, self.scraper.engine
        described = status.describe(picking.pool(), saturation, engine, picking.predicting())
        return {**described, "in_flight_until": until}

    async def _status_of_all(self, siblings: "SiblingPages") -> Mapping[str, Any]:
        return await siblings.merge_status(self._describe_status())

    def _describe_status(self) -> dict[str, Any]:
        return {name: value for part in self.described for name, value in part().items()}
