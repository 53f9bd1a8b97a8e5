import threading
from collections.abc import Iterator

import numpy as np
import pytest
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import Metric
from prometheus_client.registry import Collector

from epp.endpoints.endpoint import NO_ADAPTERS, NO_NUMBERS, Column, EndpointPool
from epp.telemetry import pages as status
from epp.telemetry.counters import Telemetry
from epp.telemetry.pool_metrics import PoolGauges
from tests.epp.scheduling.endpoint_pools import make_endpoint

ENDPOINTS = [make_endpoint("a", models=frozenset({"m", "l"})), make_endpoint("b", address="fd00::1")]
KNOWN = NO_NUMBERS.copy()
KNOWN[[Column.WAITING, Column.RUNNING, Column.KV_USAGE, Column.INFLIGHT], 0] = [2.0, 3.0, 0.5, 1.0]
KNOWN[Column.SCRAPED_AT] = 9.0


def pool() -> EndpointPool:
    unreachable = NO_NUMBERS.copy()
    unreachable[Column.REACHABLE] = 0.0
    return EndpointPool(ENDPOINTS, np.hstack([KNOWN, unreachable]), [NO_ADAPTERS, NO_ADAPTERS], 10.0)


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
                "engine": None,
                "ignored": (),
                "inflight": 1,
                "peer_inflight": 0,
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
                "engine": None,
                "ignored": (),
                "inflight": 0,
                "peer_inflight": 0,
                "waiting": None,
                "running": None,
                "kv_usage": None,
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
    gauges = PoolGauges("pool", pool, lambda: {"effective": 0.25}, 2.0)
    app = status.application(Telemetry().registry, gauges, lambda: status.describe(pool(), 0.25))
    async with TestClient(TestServer(app)) as client:
        async with client.get("/metrics", headers={"Accept": accept}) as answer:
            assert answer.headers["content-type"].startswith(content_type)
            page = await answer.text()
            assert "llm_d_epp_scheduler_e2e_duration_seconds" in page
            assert 'llm_d_epp_ready_endpoints{name="pool"} 1.0' in page
        async with client.get("/healthz") as answer:
            assert (answer.status, await answer.text()) == (200, "ok\n")
        async with client.get("/debug/endpoints") as answer:
            assert [each["id"] for each in (await answer.json())["endpoints"]] == ["a", "b"]
            assert (await answer.text()).endswith("}\n"), "a shell's prompt stands on a line of its own"


class Witness(Collector):
    """Notes which thread asks."""

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def collect(self) -> Iterator[Metric]:
        self.threads.add(threading.get_ident())
        return iter(())


async def test_the_long_part_of_the_page_holds_up_no_pick() -> None:
    counted, gauges = Witness(), Witness()
    server = TestServer(status.application(counted, gauges, dict))
    async with TestClient(server) as client, client.get("/metrics") as answer:
        assert answer.status == 200
    assert counted.threads.isdisjoint({threading.get_ident()})
    assert gauges.threads == {threading.get_ident()}
