"""The worked examples of the dispatch budget, end to end: a dispatcher, a picker with a queue, Envoy and workers.

What is full is read from the picker's own page: S, its saturation, or F, the part of its queue that is taken.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web

from benchmarks.envoy_process import envoy
from epp.envoy.config import bootstrap
from epp.envoy.json_values import Address
from epp.envoy.settings import EnvoySettings
from epp.server import PickerServer
from examples.redis_process import redis_process
from tests.dispatcher.processes import Running, dispatcher
from tests.epp.envoy.picker_stage import started_worker
from tests.epp.local_picker import addresses, local
from tests.eventually import eventually
from tests.patient_envoy import patient

WORKERS, CONCURRENCY = 5, 10
KIB = 1024
QUEUE_BYTES, MAX_QUEUED = 1024 * KIB, 500
HEADERS = 0.012
"""The share of the queue that the headers of five requests take at most."""
LAG = "2s"
"""A request that is sent shows on the picker's page at once; a busy machine needs longer."""
CONFIG = f"""
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- {{type: concurrency-detector, parameters: {{maxConcurrency: {CONCURRENCY}}}}}
- {{type: active-request-scorer}}
flowControl:
  saturationDetector: {{pluginRef: concurrency-detector}}
  maxBytes: "{QUEUE_BYTES}"
  maxRequests: {MAX_QUEUED}
  defaultRequestTTL: 600s
  defaultNegativePriorityBand: {{maxRequests: 2}}
"""
READY = "llm_d_epp_ready_endpoints"
SATURATION = "llm_d_epp_flow_control_pool_saturation"
QUEUED = "llm_d_epp_flow_control_global_capacity_utilization_requests"
FULLNESS = "llm_d_epp_flow_control_global_capacity_utilization_bytes"


_JSON = {"content-type": "application/json"}


class HeldWorkers:
    """Answer each request when they are told to; they know which came."""

    def __init__(self) -> None:
        self.came: list[str] = []
        self._held: dict[str, asyncio.Event] = {}

    def batch(self) -> list[str]:
        """The names of the batch requests that came."""
        return [name for name in self.came if name.startswith("batch")]

    async def answer(self, request: web.Request) -> web.Response:
        name = str((await request.json())["name"])
        self.came.append(name)
        await self._held.setdefault(name, asyncio.Event()).wait()
        return web.json_response({"name": name})

    def release(self, *names: str) -> None:
        for name in names:
            self._held.setdefault(name, asyncio.Event()).set()


class Stage:
    """The picker with its workers, and clients of its Envoy."""

    def __init__(self, workers: HeldWorkers, gateway: str, page: str, client: aiohttp.ClientSession) -> None:
        self.workers = workers
        self.gateway = gateway
        self.page = page
        self._client = client
        self._asked: list[asyncio.Task[int]] = []

    def ask(self, *requests: bytes) -> None:
        """Users ask, and wait for their answers."""
        self._asked += [asyncio.create_task(self._ask(sent)) for sent in requests]

    async def _ask(self, sent: bytes) -> int:
        async with self._client.post(f"{self.gateway}/v1/completions", data=sent, headers=_JSON) as answer:
            await answer.read()
            return answer.status

    async def answered(self) -> set[int]:
        """The statuses of what users asked, once all are answered."""
        return set(await asyncio.gather(*self._asked))

    async def until(self, name: str, value: float, within: float = 1e-6) -> None:
        """Returns when the picker's page says so."""
        await eventually(lambda: self._shows(f"{self.page}", name, value, within))

    async def until_sent(self, count: int) -> None:
        """Returns when so many requests of the batch came to workers."""
        await eventually(lambda: len(self.workers.batch()) >= count)

    async def until_read(self, running: Running, value: float, within: float = 1e-6) -> None:
        """Returns when the gate has read so much from the picker's page."""
        read = "llm_d_async_async_gate_metric_value"
        await eventually(lambda: self._shows(f"{running.http}/metrics", read, value, within))

    async def counts(self, part: str, least: float, running: Running | None = None) -> bool:
        """Whether a counter is at least that, on the picker's page or the dispatcher's; `part` names its series."""
        async with self._client.get(self.page if running is None else f"{running.http}/metrics") as answer:
            lines = (await answer.text()).split("\n")
        return any(
            float(line.rpartition(" ")[2]) >= least for line in lines if part in line and line[0] != "#"
        )

    async def _shows(self, page: str, name: str, value: float, within: float) -> bool:
        async with self._client.get(page) as answer:
            lines = (await answer.text()).split("\n")
        found = [float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{")]
        return bool(found) and abs(max(found) - value) < within

    async def enqueue(self, running: Running, *requests: bytes) -> None:
        """Hands these to the dispatcher, in this order."""
        headers = _JSON | {"X-Dispatch": "enqueue"}
        for sent in requests:
            async with self._client.post(
                f"{running.http}/v1/completions", data=sent, headers=headers
            ) as answer:
                assert answer.status == 202, await answer.text()


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        workers = HeldWorkers()
        ports = [await started_worker(stack, "/v1/completions", workers.answer) for _ in range(WORKERS)]
        config = tmp_path / "picker.yaml"
        config.write_text(CONFIG)
        listed = "static://" + ",".join(f"127.0.0.1:{port}" for port in ports)
        given = local(discovery=listed, config_file=config, objectives={"batch": -1})
        server = await stack.enter_async_context(PickerServer(given))
        where = addresses(server)
        host, _, port = where["grpc"].rpartition(":")
        shown = EnvoySettings(
            listen=Address(host, 0),
            admin=Address(host, 0),
            pickers=(Address(host, int(port)),),
            response_trailer="SEND",
            secure=False,
            access_log="",
        )
        _, listens = await stack.enter_async_context(envoy(yaml.safe_dump(patient(bootstrap(shown)))))
        client = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        )
        yield Stage(workers, f"http://127.0.0.1:{listens}", f"http://{where['metrics']}/metrics", client)


@asynccontextmanager
async def dispatching(stage: Stage, folder: Path, *gates: dict[str, Any]) -> AsyncIterator[Running]:
    """A dispatcher whose gates read the picker's page."""
    read = {"url": stage.page, "interval": "200ms", "lag": LAG}
    scraping = [{"type": "endpoint-scrape", "params": read | gate} for gate in gates]
    gate = {"type": "all-of", "params": {"gates": scraping}} if gates else {"type": "constant"}
    queue = {"name": "batch", "target": "pool", "gate": gate}
    if not gates:
        queue["objective"] = "batch"
    async with redis_process() as (broker, _):
        document = {
            "broker": broker,
            "http": {"port": 0},
            "targets": [{"name": "pool", "url": stage.gateway}],
            "queues": [queue],
            "front_door": {"queue": "batch"},
        }
        config = folder / "dispatcher.yaml"
        config.write_text(json.dumps(document))
        async with dispatcher(config) as running:
            yield running


async def test_five_workers_of_ten_at_a_saturation_of_0_3_get_30_requests(
    stage: Stage, tmp_path: Path
) -> None:
    users = [f"user-{number}" for number in range(15)]
    batch = [f"batch-{number}" for number in range(40)]
    stage.ask(*map(body, users))
    await stage.until(SATURATION, 0.3)
    counted = {"metric": SATURATION, "pods_metric": READY, "max_concurrency": CONCURRENCY, "baseline": 0.1}
    queued = {"metric": QUEUED, "pods": 1, "max_concurrency": MAX_QUEUED, "baseline": 0.1}
    async with dispatching(stage, tmp_path, counted, queued) as running:
        await stage.enqueue(running, *map(body, batch))
        await stage.until_sent(30)
        await stage.until_read(running, 0.9)

        stage.workers.release(*users[:4])
        await stage.until_sent(34)
        await stage.until_read(running, 0.9)
        assert set(stage.workers.batch()) == set(batch[:34])

        stage.workers.release(*users, *batch)
        await stage.until_sent(40)
        assert await stage.answered() == {200}
        await stage.until(SATURATION, 0.0)


async def test_of_614_kib_only_the_first_request_goes(stage: Stage, tmp_path: Path) -> None:
    """F is read in bytes: the pool is full, and three tenths of the picker's queue are taken."""
    users = [f"user-{number}" for number in range(WORKERS * CONCURRENCY)]
    waiting = {f"waiting-{number}": QUEUE_BYTES * 3 // 40 for number in range(4)}
    batch = {"batch-1": 600 * KIB, "batch-2": 100 * KIB, "batch-3": 1 * KIB}
    stage.ask(*map(body, users))
    await stage.until(SATURATION, 1.0)
    stage.ask(*(body(name, size) for name, size in waiting.items()))
    await stage.until(FULLNESS, sum(waiting.values()) / QUEUE_BYTES, HEADERS)
    counted = {
        "metric": FULLNESS,
        "unit": "bytes",
        "pods": 1,
        "max_concurrency": QUEUE_BYTES,
        "baseline": 0.1,
    }
    async with dispatching(stage, tmp_path, counted) as running:
        await stage.enqueue(running, *(body(name, size) for name, size in batch.items()))
        full = (sum(waiting.values()) + 600 * KIB) / QUEUE_BYTES
        await stage.until(FULLNESS, full, HEADERS)
        await stage.until_read(running, full, HEADERS)
        assert stage.workers.batch() == []

        stage.workers.release(*users, *waiting, *batch)
        await stage.until_sent(3)
        assert set(stage.workers.batch()) == set(batch)
        assert await stage.answered() == {200}
        await stage.until(FULLNESS, 0.0)


async def test_just_above_the_baseline_one_request_goes_at_a_time(stage: Stage, tmp_path: Path) -> None:
    users = [f"user-{number}" for number in range(45)]
    batch = [f"batch-{number}" for number in range(3)]
    stage.ask(*map(body, users))
    await stage.until(SATURATION, 0.9)
    counted = {"metric": SATURATION, "pods_metric": READY, "max_concurrency": CONCURRENCY, "baseline": 0.0999}
    async with dispatching(stage, tmp_path, counted) as running:
        await stage.enqueue(running, *map(body, batch))
        for number in range(3):
            await stage.until_sent(number + 1)
            await stage.until_read(running, 0.92)
            assert stage.workers.batch() == batch[: number + 1]
            stage.workers.release(batch[number])
    stage.workers.release(*users)
    assert await stage.answered() == {200}


async def test_what_the_picker_refuses_is_sent_again(stage: Stage, tmp_path: Path) -> None:
    """An open gate: the pool is full, two requests below 0 may wait in the picker, and the third is answered 429."""
    users = [f"user-{number}" for number in range(WORKERS * CONCURRENCY)]
    batch = [f"batch-{number}" for number in range(5)]
    stage.ask(*map(body, users))
    await stage.until(SATURATION, 1.0)
    async with dispatching(stage, tmp_path) as running:
        await stage.enqueue(running, *map(body, batch))
        await stage.until(QUEUED, 2 / MAX_QUEUED)
        await eventually(lambda: stage.counts('outcome="RejectedCapacity"', 1))
        assert stage.workers.batch() == []

        stage.workers.release(*users, *batch)
        await stage.until_sent(5)
        await eventually(lambda: stage.counts("llm_d_async_async_broker_succeeded_total", 5, running))
        assert sorted(stage.workers.batch()) == batch
        assert await stage.answered() == {200}


def body(name: str, size: int = 0) -> bytes:
    """A JSON document of `size` bytes, or as short as it can be."""
    short = json.dumps({"name": name, "model": "m", "prompt": "here", "pad": ""}).encode()
    return short[:-2] + b"x" * max(0, size - len(short)) + short[-2:]
