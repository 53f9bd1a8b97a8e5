"""Serves the dispatcher's page for browsers and its data as JSON."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import web

from adsum.web.access import Access
from adsum.web.live_feed import LiveFeed
from adsum.web.program_page import ProgramPage
from dispatcher.web.queue_page import queues_document
from dispatcher.web.queue_states import QueueStates

QUEUES_PATH: Final = "/debug/queues"
GUARDED: Final = ProgramPage.PATHS | {QUEUES_PATH}
_STATIC: Final = Path(__file__).parent / "static"


class QueuePages:
    """All applications share one rendering. `problem`: why the dispatcher is not ready; empty if it is."""

    def __init__(self, queues: QueueStates, problem: Callable[[], str]) -> None:
        self._queues = queues
        self._problem = problem
        self._page = ProgramPage("dispatcher", _STATIC, "dispatcher.js", LiveFeed({"queues": self._look}))

    def add_routes(self, app: web.Application, access: Access) -> web.Application:
        """The same application. To be called before other middlewares are added; `access` guards `GUARDED`."""
        access.guard(app)
        self._page.add_routes(app)
        app.router.add_get(QUEUES_PATH, self._get)
        return app

    async def _get(self, _: web.Request) -> web.Response:
        await self._queues.asked()
        return web.Response(body=self._document(), content_type="application/json")

    def _look(self) -> bytes:
        self._queues.look()
        return self._document()

    def _document(self) -> bytes:
        return msgspec.json.encode(queues_document(self._queues.states(), time.time(), self._problem()))
