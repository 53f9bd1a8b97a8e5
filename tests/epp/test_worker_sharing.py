"""Workers of a picker of several processes: one process asks them, all know what they say, and another one takes over."""

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from epp import worker_sharing
from epp.config.picker_config import load_config
from epp.config.settings import Settings
from epp.config.sibling_processes import Siblings
from epp.config.worker_source import WorkerSource
from epp.endpoints.datastore import Datastore
from epp.endpoints.worker_facts import FactCodec
from epp.endpoints.worker_metrics import WORKER_METRICS
from epp.telemetry.counters import Telemetry
from epp.worker_discovery import WorkerDiscovery, endpoint_defaults
from epp.worker_scraping import WorkerScraping
from epp.worker_sharing import WorkerSharing
from tests.epp.picker_programs import PickerProgram
from tests.epp.test_processes import group, processes
from tests.eventually import eventually
from tests.http_server import http_server


class Worker:
    """Counts who asks it. `clients`: ports from which its pages were asked for, since it was cleared, by path."""

    def __init__(self) -> None:
        self.clients: dict[str, set[int]] = {}
        self.asked = 0
        self.waiting = 0
        self.adapters = 0

    async def answer(self, request: web.Request) -> web.Response:
        assert request.transport is not None
        self.clients.setdefault(request.path, set()).add(request.transport.get_extra_info("peername")[1])
        if request.path == "/v1/models" and self.adapters:
            return web.json_response({"data": [{"id": f"adapter-{one}"} for one in range(self.adapters)]})
        if request.path != "/metrics":
            return web.Response(status=404)
        self.asked += 1
        return web.Response(text=f"vllm:num_requests_running 1\nvllm:num_requests_waiting {self.waiting}\n")

    @asynccontextmanager
    async def served(self) -> AsyncIterator[int]:
        async with http_server({"/{path:.*}": self.answer}) as port:
            yield port

    async def only_client(self) -> int:
        """Who alone asked fifteen times for its page. A process that stands still for a moment, on a busy machine, is relieved, too."""
        async with asyncio.timeout(90):
            while True:
                self.clients.clear()
                until = self.asked + 15
                await eventually(lambda until=until: self.asked >= until)
                if max(map(len, self.clients.values())) == 1:
                    return next(iter(self.clients["/metrics"]))


async def scraped_by(picker: PickerProgram) -> int:
    return int((await picker.page("status"))["scraped_by"])


async def test_workers_are_asked_by_one_process_of_three() -> None:
    worker = Worker()
    async with worker.served() as port, group(3, [port]) as picker:
        await worker.only_client()
        assert await scraped_by(picker) in (1, 2, 3)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_another_process_takes_over(number: signal.Signals) -> None:
    worker = Worker()
    async with worker.served() as port, group(2, [port]) as picker:
        before = await worker.only_client()
        place = await scraped_by(picker)
        there = processes(picker)[place]
        os.kill(there, number)
        stopped = time.monotonic()
        try:
            await eventually(lambda: worker.clients["/metrics"] - {before})
            assert time.monotonic() - stopped < 10.0
        finally:
            if number is signal.SIGSTOP:
                os.kill(there, signal.SIGCONT)
        assert await worker.only_client() != before, "the one that comes back does not ask, too"


class Process:
    """What a process of the picker has of workers, without the rest."""

    def __init__(self, siblings: Siblings, ports: list[int]) -> None:
        settings = Settings()
        config = load_config(None, rng=random.Random(1))
        self.store = Datastore(endpoint_defaults(config, settings))
        source = WorkerSource(url="static://" + ",".join(f"127.0.0.1:{port}" for port in ports))
        self.workers = WorkerDiscovery(source, settings, self.store)
        scraping = WorkerScraping(settings, config, self.store, Telemetry())
        codec = FactCodec(WORKER_METRICS)
        self.sharing = WorkerSharing(siblings, self.store, codec, self.workers, scraping)

    @property
    def waiting(self) -> list[float]:
        return sorted(self.store.pool(time.monotonic()).waiting.tolist())


def places(folder: Path) -> tuple[Siblings, Siblings]:
    return Siblings(1, 2, folder, {}), Siblings(2, 2, folder, {})


async def test_all_processes_know_what_one_finds_out(tmp_path: Path) -> None:
    first, second = Worker(), Worker()
    first.waiting = 3
    async with first.served() as port, second.served() as other_port, AsyncExitStack() as stack:
        one, other = (Process(siblings, [port, other_port]) for siblings in places(tmp_path))
        opened = await stack.enter_async_context(AsyncExitStack())
        await opened.enter_async_context(one.sharing)
        await stack.enter_async_context(other.sharing)
        assert [found.id for found in other.store.endpoints] == [found.id for found in one.store.endpoints]
        await eventually(lambda: other.waiting == [0.0, 3.0])
        second.waiting = 5
        await eventually(lambda: other.waiting == [3.0, 5.0])

        endpoint = other.store.endpoints[0]
        other.store.suspect(endpoint)
        assert other.store.is_lost(endpoint), "until the one that asks has found out"
        await eventually(lambda: not other.store.is_lost(endpoint))
        other.store.suspect(endpoint)
        assert other.store.is_lost(endpoint), "and again"
        await eventually(lambda: not other.store.is_lost(endpoint))

        assert other.sharing.describe() == {"scraped_by": 1}
        await opened.aclose()
        first.waiting = 7
        await eventually(lambda: other.waiting == [5.0, 7.0])
        assert other.sharing.describe() == {"scraped_by": 2}

        again = Process(places(tmp_path)[0], [port, other_port])
        await stack.enter_async_context(again.sharing)
        await asyncio.sleep(0)
        assert again.sharing.describe() == {"scraped_by": 2}
        assert again.waiting == [5.0, 7.0], "before it is ready"


async def test_who_takes_over_removes_what_is_gone(tmp_path: Path) -> None:
    stays, goes = Worker(), Worker()
    async with stays.served() as port, goes.served() as other_port, AsyncExitStack() as stack:
        siblings = places(tmp_path)
        opened = await stack.enter_async_context(AsyncExitStack())
        await opened.enter_async_context(Process(siblings[0], [port, other_port]).sharing)
        other = Process(siblings[1], [port])  # it would find one
        await stack.enter_async_context(other.sharing)
        assert len(other.store.endpoints) == 2
        await opened.aclose()
        await eventually(lambda: len(other.store.endpoints) == 1)


async def test_who_takes_over_calls_no_worker_missing_that_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Worker().served() as port, AsyncExitStack() as stack:
        one, other = (Process(siblings, [port]) for siblings in places(tmp_path))
        opened = await stack.enter_async_context(AsyncExitStack())
        await opened.enter_async_context(one.sharing)
        await stack.enter_async_context(other.sharing)
        await opened.aclose()
        await eventually(lambda: other.workers.describe()["watch"] is not None and not other.workers.absent())
    assert not [record.message for record in caplog.records if "gets no requests" in record.message]


async def test_more_than_may_wait_for_a_process_is_told_at_its_pace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_sharing, "_PART", 1)
    monkeypatch.setattr(worker_sharing, "_MOST_UNREAD", 100_000)
    worker = Worker()
    worker.adapters = 1000
    async with AsyncExitStack() as stack:
        ports = [await stack.enter_async_context(worker.served()) for _ in range(12)]
        one, other = (Process(siblings, ports) for siblings in places(tmp_path))
        await stack.enter_async_context(one.sharing)
        await eventually(lambda: all(len(found.listed_models) == 1000 for found in one.store.endpoints))
        async with asyncio.timeout(60):
            await stack.enter_async_context(other.sharing)
        # a machine that stood still may have made the other one ask the workers for a while
        await eventually(lambda: other.sharing.describe() == {"scraped_by": 1})
        await eventually(lambda: all(len(found.listed_models) == 1000 for found in other.store.endpoints))
        assert len(other.store.endpoints) == len(ports)
