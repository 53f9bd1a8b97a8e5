"""The picker's page, under picks, in this process."""

import asyncio
import random
import time

from aiohttp import web

from adsum.serving.pages import PageServer
from adsum.serving.sockets import listening_sockets
from adsum.tasks import background
from benchmarks.open_page.browsers import page_cost
from discovery import Instance, InstanceAddedEvent
from epp.config.picker_config import load_config
from epp.decisions.recorder import PickRecorder
from epp.decisions.ring import DecisionRing
from epp.endpoints.datastore import Datastore
from epp.endpoints.load import Load
from epp.scheduling.director import Director
from epp.scheduling.pick import Pick
from epp.scheduling.request_reader import Policy
from epp.web.picker_page import PickerPage, PickerParts

_PICKS_PER_SECOND = 20


class _Picker:
    """A director whose endpoints publish numbers each second, and the page over it."""

    def __init__(self, count: int) -> None:
        rng = random.Random(1)
        self._store = Datastore()
        for i in range(count):
            instance = Instance(f"worker-{i}", "ns", "c", f"10.0.{i // 250}.{i % 250 + 1}", 8000, "a")
            document = {"model": {"name": "meta-llama/Llama-3.1-8B-Instruct"}}
            self._store.apply(InstanceAddedEvent(instance), document)
        config = load_config(None, rng=rng, staleness=2.0)
        self._director = Director(self._store, config.scheduler, config.detector, Policy(), rng)
        ring = DecisionRing(1000)
        self._director.decisions = PickRecorder(ring, (), time.perf_counter)
        self._picks: dict[tuple[str, str], int] = {}
        self._rng = rng
        self.page = PickerPage(
            PickerParts(
                name="benchmark",
                pool=lambda: self._store.pool(time.monotonic()),
                saturation=lambda: self._director.saturation(time.monotonic()),
                status=dict,
                absent=dict,
                outliers=list,
                flow_control=lambda: None,
                decisions=ring,
                picks=self._picks,
                credits=dict,
                stale_after=2.0,
                clock=time.monotonic,
            )
        )

    async def pick(self) -> None:
        body = b'{"model": "meta-llama/Llama-3.1-8B-Instruct", "prompt": "hello"}'
        headers = {":method": "POST", ":path": "/v1/completions", "x-request-id": "1" * 36}
        went: list[Pick] = []
        for turn in range(1_000_000):
            now = time.monotonic()
            if turn % _PICKS_PER_SECOND == 0:
                self._publish(now)
            outcome = self._director.direct(headers, body, None, now)
            assert isinstance(outcome, Pick)
            self._picks[outcome.endpoints[0].key] = self._picks.get(outcome.endpoints[0].key, 0) + 1
            self._director.picks.responded(outcome, 200, now)
            went.append(outcome)
            if len(went) > 50:
                self._director.picks.release(went.pop(0), now)
            await asyncio.sleep(1 / _PICKS_PER_SECOND)

    def _publish(self, now: float) -> None:
        for endpoint in self._store.endpoints:
            load = Load(
                waiting=self._rng.randrange(4), running=self._rng.randrange(30), kv_usage=self._rng.random()
            )
            self._store.observe(endpoint, load, now, 1.0)


async def measure(count: int) -> None:
    picker = _Picker(count)
    app = web.Application()
    picker.page.page.add_routes(app)
    server = PageServer(app, listening_sockets("127.0.0.1", 0), "the page")
    await server.start()
    try:
        async with background(picker.pick()), background(picker.page.run()):
            cost = await page_cost(server.port)
    finally:
        await server.aclose()
    print(f"picker, {count} endpoints, {_PICKS_PER_SECOND} picks a second: {cost}", flush=True)


async def main() -> None:
    for count in (4, 100, 1000):
        await measure(count)
