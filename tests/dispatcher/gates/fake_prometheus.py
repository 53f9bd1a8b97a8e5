"""An HTTP server that answers instant queries as Prometheus does, with values from the test."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

READY = 'max(llm_d_epp_ready_endpoints{name="pool"}) or max(inference_pool_ready_pods{name="pool"})'


def vector(*values: str, at: float | None = None) -> dict[str, Any]:
    """An instant vector with those values, of the time when it is asked for or of the time `at`."""
    return {"resultType": "vector", "result": [{"metric": {}, "value": [at, value]} for value in values]}


class FakePrometheus:
    """`data`: by query; one that is not there gives an empty vector. `answer` in place of all that, with `status`."""

    def __init__(self) -> None:
        self.data: dict[str, dict[str, Any]] = {}
        self.answer: str | None = None
        self.status = 200
        self.asked: list[str] = []
        self.authorization: list[str] = []

    async def _query(self, request: web.Request) -> web.Response:
        query = request.query["query"]
        self.asked.append(query)
        self.authorization.append(request.headers.get("Authorization", ""))
        body = {"status": "success", "data": _of_now(self.data.get(query, vector()))}
        return web.Response(
            text=self.answer if self.answer is not None else json.dumps(body),
            status=self.status,
            content_type="application/json",
        )

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """The URL of the server, while inside."""
        app = web.Application()
        app.router.add_get("/api/v1/query", self._query)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            host, port = runner.addresses[0][:2]
            yield f"http://{host}:{port}"
        finally:
            await runner.cleanup()


def _of_now(data: dict[str, Any]) -> dict[str, Any]:
    now = time.time()
    if data["resultType"] == "scalar":
        return {**data, "result": [data["result"][0] or now, data["result"][1]]}
    if data["resultType"] != "vector":
        return data
    points = [(one["value"][0] or now, one["value"][1]) for one in data["result"]]
    return {**data, "result": [{"metric": {}, "value": list(point)} for point in points]}
