"""Does kubelet's part for the pods of workers in this process: probes `/health`, and deletes the pod of a worker that left."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import aiohttp

from registry import Contract
from tests.system.api_client import ApiError
from tests.system.cluster import Cluster, Pod

_PERIOD: Final = 0.02
"""Seconds between two probes of a pod; a real one's default is 10."""


@dataclass(slots=True)
class ProbedPod:
    """A probed pod. `probe` returns whether it is ready, None once its worker has left."""

    pod: Pod
    probe: Callable[[], Awaitable[bool | None]]
    told: bool = False


class Kubelet:
    """Kubelet of one node; `running_kubelet` starts it."""

    def __init__(self, cluster: Cluster, session: aiohttp.ClientSession) -> None:
        self._cluster = cluster
        self._session = session
        self._probed_pods: dict[str, ProbedPod] = {}
        self._ended: set[str] = set()
        self._probing = asyncio.Lock()

    def add_pod(self, pod: Pod, probe: Callable[[], Awaitable[bool | None]]) -> None:
        self._probed_pods[pod.uid] = ProbedPod(pod, probe)

    async def is_healthy(self, pod: Pod, port: int) -> bool:
        """Returns whether `/health` answers 200."""
        try:
            async with self._session.get(f"http://{pod.address}:{port}/health") as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def run(self) -> None:
        while True:
            await self.probe_all()
            await asyncio.sleep(_PERIOD)

    async def probe_all(self) -> None:
        """Probes each pod once and reports changes."""
        async with self._probing:
            for probed_pod in list(self._probed_pods.values()):
                await self._probe(probed_pod)

    async def settle(self) -> None:
        """Probes all pods and waits until the EndpointSlices agree."""
        await self.probe_all()
        async with asyncio.timeout(90):
            while not self._agrees(await self._cluster.endpoints()):
                await asyncio.sleep(0.005)

    async def _probe(self, probed_pod: ProbedPod) -> None:
        found = await probed_pod.probe()
        pod = probed_pod.pod
        if found is None:
            del self._probed_pods[pod.uid]
            self._ended.add(pod.uid)
            await self._end(pod)
        elif found != probed_pod.told:
            await self._cluster.probed(pod, found)
            probed_pod.told = found

    async def _end(self, pod: Pod) -> None:
        try:
            await self._cluster.end(pod)
        except ApiError as error:
            if error.status != 404:
                raise

    def _agrees(self, shown: dict[str, dict[str, dict[str, bool]]]) -> bool:
        if shown.keys() & self._ended:
            return False
        for uid, probed_pod in self._probed_pods.items():
            endpoint = shown.get(uid)
            if endpoint is None or endpoint["conditions"]["ready"] != probed_pod.told:
                return False
        return True


@asynccontextmanager
async def running_kubelet(cluster: Cluster) -> AsyncIterator[Kubelet]:
    connector = aiohttp.TCPConnector(force_close=True)  # as kubelet's probes
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(60.0)) as session:
        kubelet = Kubelet(cluster, session)
        running = asyncio.create_task(kubelet.run(), name="kubelet")
        try:
            yield kubelet
        finally:
            running.cancel()
            await asyncio.wait([running])
            if not running.cancelled():
                running.result()


class LeavingContract(Contract):
    """A contract with an event for the instance's leaving, at which the process of a pod would exit."""

    def __init__(self) -> None:
        super().__init__()
        self.left = asyncio.Event()

    def unbind(self) -> None:
        super().unbind()
        self.left.set()
