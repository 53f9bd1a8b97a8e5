"""Everything that the dashboards show, in one run: users, a batch, workers that fail, come and go."""

import asyncio
import signal
from pathlib import Path
from typing import Final

import aiohttp

from adsum.tasks import ResourceOwner
from examples.dashboards.prometheus import Prometheus
from examples.demo.cluster import COMPONENT, MODEL, NAMESPACE, DemoCluster, MoreFlags
from examples.demo.load import LoadGenerator
from examples.demo.processes import DemoProcess, python
from examples.demo_batch.dispatcher import BatchDispatcher
from examples.demo_batch.protection import Protection

_PLACES: Final = 16
"""Of one worker, as `picker.yaml` says too."""
_USERS: Final = 12
_READS_ANSWERS: Final = "--usage-metrics"
_PICKER: Final = (
    *("--config-file", str(Path(__file__).with_name("picker.yaml"))),
    *("--objective", "batch=-1", _READS_ANSWERS),
)
_GATE: Final = {
    "metric": "llm_d_epp_flow_control_pool_saturation",
    "max_concurrency": _PLACES,
    "lag": "0.5s",
}


class Stage(ResourceOwner):
    """Entering starts workers, picker, Envoy, dispatcher, users and a Prometheus; leaving ends them."""

    def __init__(self, root: Path) -> None:
        protection = Protection(
            _GATE,
            queue={"objective": "batch"},
            picker=_PICKER,
            envoy=("--response-trailer", "SEND", _READS_ANSWERS),
        )
        flags = MoreFlags(("--faults",), protection.picker, protection.envoy)
        self.cluster = DemoCluster(root, flags=flags)
        self.dispatcher = BatchDispatcher(self.cluster, root, protection)
        self._root = root

    async def _open(self) -> None:
        await self._stack.enter_async_context(self.cluster)
        await self._stack.enter_async_context(self.dispatcher)
        pages = {
            "picker": self.cluster.metrics.removeprefix("http://"),
            "dispatcher": self.dispatcher.url.removeprefix("http://"),
            "discovery": await self._serve_discovery(),
        }
        self.prometheus = await self._stack.enter_async_context(Prometheus(self._root, pages))
        self._session = await self._stack.enter_async_context(aiohttp.ClientSession())
        await self._stack.enter_async_context(LoadGenerator(self.cluster.url, MODEL, _USERS))

    async def _serve_discovery(self) -> str:
        """Starts a second reader of the same workers; returns where its metrics page is."""
        where = ("--discovery", self.cluster.discovery, "--listen", "127.0.0.1:0")
        command = python("discovery", "serve", NAMESPACE, COMPONENT, *where)
        process = await DemoProcess.start("discovery", command, self._root)
        self._stack.push_async_callback(process.terminate)
        return (await process.wait_ready())["http"]

    async def run(self, seconds: float) -> None:
        """A wave of users and a batch, then a worker that fails, one that is not ready, and one that is replaced."""
        part = seconds / 6
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._stage_events(part))
            tasks.create_task(self._ask_for_unknown_models(seconds))
            tasks.create_task(self.dispatcher.submit(int(5 * seconds)))

    async def _stage_events(self, part: float) -> None:
        async with LoadGenerator(self.cluster.url, MODEL, 3 * _PLACES):
            await asyncio.sleep(part)
        await self._set_fault("worker-1", "error")
        await asyncio.sleep(part)
        await self._set_fault("worker-1", "none")
        workers = self.cluster.workers
        workers["worker-2"].send(signal.SIGUSR1)
        await asyncio.sleep(part)
        workers["worker-2"].send(signal.SIGUSR1)
        await self.cluster.add_worker("worker-4")
        await asyncio.sleep(part)
        workers["worker-3"].send(signal.SIGTERM)
        await asyncio.sleep(part)
        workers["worker-4"].send(signal.SIGKILL)
        await asyncio.sleep(part)

    async def _set_fault(self, worker: str, fault: str) -> None:
        [place] = [view.destination for view in await self.cluster.views() if view.id == worker]
        async with self._session.post(f"http://{place}/fault", data=fault) as answer:
            answer.raise_for_status()

    async def _ask_for_unknown_models(self, seconds: float) -> None:
        body = {"model": "unknown", "messages": [{"role": "user", "content": "Who is there?"}]}
        for _ in range(int(seconds)):
            async with self._session.post(f"{self.cluster.url}/v1/chat/completions", json=body) as answer:
                await answer.read()
            await asyncio.sleep(1)
