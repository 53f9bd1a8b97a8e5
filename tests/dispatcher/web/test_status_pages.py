"""The pages /healthz, /readyz and /metrics over a real socket."""

from collections.abc import Sequence

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.registry import Collector

from dispatcher.telemetry.metrics import DispatcherTelemetry
from dispatcher.web.ports import add_status_routes


async def looked_up() -> Sequence[Collector]:
    return ()


@pytest.mark.parametrize(
    "accept", ["application/openmetrics-text; version=banana", "text/plain; version=1.x"]
)
async def test_a_version_that_is_none_is_answered_with_the_text_that_everybody_reads(accept: str) -> None:
    app = web.Application()
    add_status_routes(app, DispatcherTelemetry(), looked_up, lambda: "")
    headers = {"Accept": accept}
    async with TestClient(TestServer(app)) as client, client.get("/metrics", headers=headers) as answer:
        assert (answer.status, answer.content_type) == (200, "text/plain")
        assert "llm_d_async_async_config_in_force 1.0" in await answer.text()
