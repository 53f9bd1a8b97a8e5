"""The metrics port asked by many, by the slow and by the strange; over real sockets."""

import asyncio
import threading
import time
from collections.abc import Iterator

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from aiohttp.typedefs import Handler
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from benchmarks.process_usage import resident_megabytes
from epp.telemetry import pages as status


class Counted(Collector):
    """So many samples, which take so long to collect; counts how often it was asked, and by how many at once."""

    def __init__(self, samples: int = 1, seconds: float = 0.0) -> None:
        self.samples = samples
        self.may_begin = threading.Event()
        self.may_begin.set()
        self.seconds = seconds
        self.asked = 0
        self.most = 0
        self._now = 0
        self._lock = threading.Lock()

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            self.asked += 1
            self._now += 1
            self.most = max(self.most, self._now)
        assert self.may_begin.wait(90)
        time.sleep(self.seconds)
        family = GaugeMetricFamily("m", "M.", labels=("number",))
        for number in range(self.samples):
            family.add_metric((f"{number:0200}",), self.asked)
        with self._lock:
            self._now -= 1
        yield family


class Nothing(Collector):
    def collect(self) -> Iterator[Metric]:
        return iter(())


def serving(counted: Counted) -> TestServer:
    return TestServer(status.application(counted, Nothing(), dict))


ACCEPTED = ["text/plain", "application/openmetrics-text; version=1.0.0"]


async def test_many_who_ask_at_once_get_one_page() -> None:
    counted = Counted(seconds=0.5)  # then the page is kept for as long as it may be
    counted.may_begin.clear()
    arrived = 0

    @web.middleware
    async def arriving(request: web.Request, handler: Handler) -> web.StreamResponse:
        nonlocal arrived
        arrived += 1
        if arrived == 20:
            counted.may_begin.set()
        return await handler(request)

    server = serving(counted)
    server.app.middlewares.append(arriving)
    async with TestClient(server) as client:

        async def ask(number: int) -> tuple[int, str]:
            async with client.get("/metrics", headers={"Accept": ACCEPTED[number % 2]}) as answer:
                return answer.status, await answer.text()

        answers = await asyncio.gather(*map(ask, range(20)))
    assert {status for status, _ in answers} == {200}
    assert counted.asked == 2, "once a form"
    assert counted.most == 1
    assert len({page for _, page in answers}) == 2


async def test_a_page_is_not_kept_for_long() -> None:
    counted = Counted()
    async with TestClient(serving(counted)) as client:
        deadline = time.monotonic() + 90
        while counted.asked < 3:
            async with client.get("/metrics") as answer:
                assert f" {counted.asked}.0" in await answer.text()
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)


async def test_who_does_not_read_has_no_page_of_his_own() -> None:
    counted = Counted(samples=60_000)
    async with serving(counted) as server, aiohttp.ClientSession() as client:
        async with client.get(server.make_url("/metrics")) as answer:
            size = len(await answer.read())
            assert answer.content_length == size
            assert size > 12_000_000
        before = resident_megabytes()
        idle = [await asyncio.open_connection("127.0.0.1", server.port, limit=1024) for _ in range(30)]
        for _, writer in idle:
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        for reader, _ in idle:
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        await asyncio.sleep(0.5)
        held = resident_megabytes() - before
        for _, writer in idle:
            writer.transport.abort()
    assert held < 150, "30 copies would be 400 MB"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("application/openmetrics-text; version=banana", "text/plain"),
        ("application/openmetrics-text; version=", "text/plain"),
        ("application/openmetrics-text; version=1.0.0; escaping=banana", "application/openmetrics-text"),
        ("application/openmetrics-text", "application/openmetrics-text"),
        ("application/openmetrics-text; version=0.0.1, text/plain", "text/plain"),
        ("text/plain; version=1.x.0", "text/plain"),
        ("text/plain; version=99999999999999999999.0.0", "text/plain"),
        (";;,,;=", "text/plain"),
        ("," * 8000, "text/plain"),
        ("", "text/plain"),
    ],
)
async def test_whatever_is_asked_for_is_answered(method: str, accept: str, kind: str) -> None:
    server, headers = serving(Counted()), {"Accept": accept}
    async with TestClient(server) as client, client.request(method, "/metrics", headers=headers) as answer:
        assert answer.status == 200
        assert answer.content_type == kind
        assert (len(await answer.read()) > 0) is (method == "GET")
