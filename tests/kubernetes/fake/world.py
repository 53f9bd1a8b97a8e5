"""Small clusters, and a discovery over each: the pods and the Service of a component with their slices, or selected Pods."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any, Final

from discovery import MetadataClient, SourceDiscovery
from discovery.kubernetes import (
    ApiTransport,
    KubernetesSource,
    PodsSource,
    PodTargets,
    PoolReference,
    ServiceSelection,
    Timings,
)
from discovery.metadata.silence import SilenceTimings
from discovery.source import Source
from tests.kubernetes.fake.api import FakeApi
from tests.kubernetes.fake.event_recorder import EventRecorder, recording_events
from tests.kubernetes.fake.memory_transport import MemoryTransport
from tests.kubernetes.fake.objects import SERVICE, inference_pool, pod, service
from tests.kubernetes.fake.rv_log import Object
from tests.kubernetes.fake.slice_controller import SliceController
from tests.kubernetes.fake.virtual_time import VirtualTimeLoop

APP: Final = {"app": "vllm"}
POOL: Final = PoolReference("pool")
SELECTED: Final = PodTargets("app=vllm", (8000,))


class FakeCluster:
    """An API server in memory. A subclass has `discovering`: a discovery over its objects."""

    discovering: Callable[..., AbstractAsyncContextManager[SourceDiscovery]]

    def __init__(self, api: FakeApi | None = None) -> None:
        self.api = api or FakeApi()
        self.log = self.api.log
        self.transport = MemoryTransport(self.api)

    def delete(self, name: str) -> None:
        self.log.delete("pods", "default", name)

    def expire_watches(self) -> None:
        """Ends the watches and forgets the changes that they did not get: the next watch gets 410. Another object is
        written as well, so that even the last version is too old.
        """
        self.log.put("pods", {"metadata": {"name": f"at-{self.log.rv}", "namespace": "elsewhere"}})
        self.log.forget()
        self.api.end_watches()

    @asynccontextmanager
    async def recorder(
        self, *which: Any, settle: float = 2.0, **timings: Any
    ) -> AsyncIterator[EventRecorder]:
        """`which`: as for `discovering`. `settle` seconds pass before the test begins: a watch that ended sooner would
        count as a failure.
        """
        async with self.discovering(*which, **timings) as discovery, recording_events(discovery) as recorder:
            await asyncio.sleep(settle)
            recorder.start = len(recorder.events)
            yield recorder


class World(FakeCluster):
    """Slices follow each change of a pod at once. With `settled` False only `sync` updates them."""

    def __init__(self, api: FakeApi | None = None, *, max_endpoints: int = 100, **of_service: Any) -> None:
        super().__init__(api)
        self.controller = SliceController(self.api, max_endpoints=max_endpoints)
        self.settled = True
        self.of_service = of_service
        self.api.put("services", service(**of_service))
        self.sync()

    def pod(self, name: str, *ips: str, **how: Any) -> str:
        """Create or replace; returns the uid. Without an address one is taken that follows from the name."""
        before = self.log.get("pods", "default", name)
        if not ips and before is not None:
            ips = tuple(entry["ip"] for entry in before["status"]["podIPs"])
        stored = self.api.put("pods", pod(name, *(ips or (address_of(name),)), **how))
        self.sync_if_settled()
        return str(stored["metadata"]["uid"])

    def put(self, *slices: Object) -> None:
        """Slices made by hand."""
        for one in slices:
            self.api.put("endpointslices", one)

    def pods(self, *names: str) -> None:
        settled, self.settled = self.settled, False
        for name in names:
            self.pod(name)
        self.settled = settled
        self.sync_if_settled()

    def delete(self, name: str) -> None:
        super().delete(name)
        self.sync_if_settled()

    def change_service(self, **how: Any) -> None:
        self.of_service |= how
        self.api.put("services", service(**self.of_service))
        self.sync_if_settled()

    def delete_service(self) -> None:
        self.log.delete("services", "default", SERVICE)

    def sync_if_settled(self) -> None:
        if self.settled:
            self.sync()

    def sync(self) -> None:
        self.controller.sync(SERVICE)

    def slices(self) -> Sequence[Object]:
        return self.log.objects("endpointslices", "default")

    @property
    def uids(self) -> set[str]:
        """Who should be an instance, judged by the pods alone."""
        return {p["metadata"]["uid"] for p in self.log.objects("pods", "default") if _available(p)}

    @asynccontextmanager
    async def discovering(
        self,
        transport: ApiTransport | None = None,
        *,
        grace: float = 0.5,
        client: MetadataClient | None = None,
        **timings: Any,
    ) -> AsyncIterator[SourceDiscovery]:
        """Over the transport in memory unless another one is given; production constants but for `timings`."""
        source = KubernetesSource(
            transport or self.transport,
            "default",
            ServiceSelection(),
            grace=grace,
            timings=replace(virtual_timings(), **timings),
        )
        async with _opened(source, client) as discovery:
            yield discovery


class PodWorld(FakeCluster):
    """Pods without Services, and an InferencePool."""

    def pod(self, name: str, *ips: str, **how: Any) -> str:
        """Create or replace; returns the uid."""
        made = pod(name, *(ips or (address_of(name),)), **{"labels": APP, **how})
        return str(self.api.put("pods", made)["metadata"]["uid"])

    def pool(self, *ports: int, **labels: str) -> None:
        self.api.put("inferencepools", inference_pool("pool", *(ports or (8000,)), labels=labels or APP))

    def delete_pool(self) -> None:
        self.log.delete("inferencepools", "default", "pool")

    @asynccontextmanager
    async def discovering(
        self, selection: PodTargets | PoolReference = SELECTED, *, grace: float = 0.5, **timings: Any
    ) -> AsyncIterator[SourceDiscovery]:
        source = PodsSource(
            self.transport, "default", selection, grace=grace, timings=replace(virtual_timings(), **timings)
        )
        async with _opened(source) as discovery:
            yield discovery


def _opened(source: Source, client: MetadataClient | None = None) -> SourceDiscovery:
    """Nobody is asked for metadata unless `client` is given."""
    is_virtual = isinstance(asyncio.get_running_loop(), VirtualTimeLoop)
    return SourceDiscovery(
        source,
        client=client or MetadataClient(silence=SilenceTimings.detected_within(0)),
        sync_timeout=10.0 if is_virtual else 90.0,
    )


def virtual_timings() -> Timings:
    """The production constants on the loop's clock, with the same random numbers in each run."""
    return Timings(clock=asyncio.get_running_loop().time, uniform=random.Random(1).uniform)


def address_of(name: str) -> str:
    """A pod address that follows from the name."""
    number = random.Random(name).randrange(1, 2**16 - 1)
    return f"10.244.{number >> 8}.{number & 255}"


async def within(seconds: float, predicate: Callable[[], object]) -> float:
    """Wait until it is true, by the loop's clock; returns the seconds that it took.

    On the machine's clock it is a bound for hangs only: other work may delay us.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    most = seconds if isinstance(loop, VirtualTimeLoop) else max(90.0, 10 * seconds)
    while not predicate():
        assert loop.time() - started <= most, f"not within {most} s"
        await asyncio.sleep(max(0.01, seconds / 1000))
    return loop.time() - started


def assert_rarely_asked(attempts: Sequence[float], since: float, until: float) -> None:
    """I5: at most three requests in the first second, and one in 20 s on average once the back-off is at its cap."""
    asked = [at - since for at in attempts if since <= at <= until]
    assert sum(at <= 1.0 for at in asked) <= 3, asked[:10]
    late = [at for at in asked if at > 60.0]
    assert len(late) <= (until - since - 60.0) / 20.0 + 1, f"{len(late)} requests in {until - since - 60:g} s"
    assert len(asked) - len(late) <= 10, asked[:12]


async def run_steps(steps: Sequence[Callable[[], object]], pause: float) -> None:
    for step in steps:
        step()
        await asyncio.sleep(pause)


def _available(obj: Object) -> bool:
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in obj["status"]["conditions"])
    return ready and "deletionTimestamp" not in obj["metadata"] and obj["status"]["phase"] == "Running"
