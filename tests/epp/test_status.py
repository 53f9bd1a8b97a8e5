import numpy as np
import pytest
from aiohttp.test_utils import TestClient, TestServer

from epp import status
from epp.endpoint import NO_ADAPTERS, NO_NUMBERS, Endpoint, EndpointPool
from epp.telemetry import Telemetry

ENDPOINTS = [
    Endpoint(
        id="a",
        incarnation="1",
        address="10.0.0.1",
        port=8000,
        metrics_port=8000,
        models=frozenset({"m", "l"}),
    ),
    Endpoint(id="b", incarnation="1", address="fd00::1", port=8000, metrics_port=8000, reachable=False),
]
KNOWN = np.array([[2.0], [3.0], [0.5], [1.0], [0.0], [9.0], [1.0]])


def pool() -> EndpointPool:
    return EndpointPool(ENDPOINTS, np.hstack([KNOWN, NO_NUMBERS]), [NO_ADAPTERS, NO_ADAPTERS], 10.0)


def test_endpoints_are_described_with_null_for_what_is_not_known() -> None:
    described = status.describe(pool(), 0.25)
    assert described == {
        "saturation": 0.25,
        "endpoints": [
            {
                "id": "a",
                "destination": "10.0.0.1:8000",
                "reachable": True,
                "models": ["l", "m"],
                "inflight": 1,
                "waiting": 2,
                "running": 3,
                "kv_usage": 0.5,
                "age": 1,
            },
            {
                "id": "b",
                "destination": "[fd00::1]:8000",
                "reachable": False,
                "models": [],
                "inflight": 0,
                "waiting": 0,
                "running": 0,
                "kv_usage": 0,
                "age": None,
            },
        ],
    }


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("text/plain", "text/plain"),
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text"),
    ],
)
async def test_pages(accept: str, content_type: str) -> None:
    app = status.application(Telemetry().registry, lambda: status.describe(pool(), 0.25))
    async with TestClient(TestServer(app)) as client:
        async with client.get("/metrics", headers={"Accept": accept}) as answer:
            assert answer.headers["content-type"].startswith(content_type)
            assert "llm_d_epp_scheduler_e2e_duration_seconds" in await answer.text()
        async with client.get("/healthz") as answer:
            assert (answer.status, await answer.text()) == (200, "ok\n")
        async with client.get("/debug/endpoints") as answer:
            assert [each["id"] for each in (await answer.json())["endpoints"]] == ["a", "b"]
