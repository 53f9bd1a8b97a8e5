"""The HTTP pages of `discovery serve`: the page for people, its data as JSON, metrics, health and readiness."""

from pathlib import Path
from typing import Any, Final

import msgspec
from aiohttp import web

from adsum.serving.pages import add_probes
from adsum.web.access import Access
from adsum.web.live_feed import LiveFeed
from adsum.web.program_page import ProgramPage
from discovery.watch_metrics import CONTENT_TYPE, metrics_text
from discovery.web.component_follower import ComponentFollower
from discovery.web.component_page import CandidateRows, component_document

INSTANCES_PATH: Final = "/debug/instances"
GUARDED: Final = ProgramPage.PATHS | {INSTANCES_PATH}
EXPLAIN_TIMEOUT: Final = 2.0
"""Seconds for which `GET /debug/instances` waits for the reasons."""
_STATIC: Final = Path(__file__).parent / "static"


class ComponentPages:
    """The pages of one component; all applications share one rendering."""

    def __init__(self, follower: ComponentFollower) -> None:
        self._follower = follower
        self._rendered: object = None
        self._rows = CandidateRows()
        feed = LiveFeed({"component": self._component, "events": follower.log.topic})
        self._page = ProgramPage("discovery", _STATIC, "discovery.js", feed)

    def application(self, access: Access) -> web.Application:
        """An application for one port; `access` guards `GUARDED`."""
        app = web.Application()
        access.guard(app)
        self._page.add_routes(app)
        app.router.add_get(INSTANCES_PATH, self._instances)
        app.router.add_get("/metrics", self._metrics)
        add_probes(app, self._unready_reason)
        return app

    async def _instances(self, _: web.Request) -> web.Response:
        await self._follower.explained(EXPLAIN_TIMEOUT)
        document = self._document() | {"events": self._follower.log.newest()}
        return web.Response(body=msgspec.json.encode(document), content_type="application/json")

    async def _metrics(self, _: web.Request) -> web.Response:
        page = metrics_text(self._follower.metrics())
        return web.Response(body=page.encode(), headers={"Content-Type": CONTENT_TYPE})

    def _unready_reason(self) -> str:
        return "" if self._follower.has_synced else str(self._follower.health.reason)

    def _component(self) -> bytes | None:
        self._follower.look()
        version = self._follower.version
        if version == self._rendered:
            return None
        self._rendered = version
        return msgspec.json.encode(self._document())

    def _document(self) -> dict[str, Any]:
        return component_document(self._follower.state(), self._rows)
