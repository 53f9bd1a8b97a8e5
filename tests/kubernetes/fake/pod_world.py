"""A small cluster of Pods without Services: Pods, an InferencePool, and a discovery that follows them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

from discovery import MetadataClient, SourceDiscovery
from discovery.kubernetes import ApiTransport, PodsSource, PodTargets, PoolReference
from discovery.metadata.silence import SilenceTimings
from tests.kubernetes.fake.api import FakeApi
from tests.kubernetes.fake.event_recorder import EventRecorder, recording_events
from tests.kubernetes.fake.memory_transport import MemoryTransport
from tests.kubernetes.fake.objects import inference_pool, pod
from tests.kubernetes.fake.world import address_of, virtual_timings

APP: Final = {"app": "vllm"}
POOL: Final = PoolReference("pool")
SELECTED: Final = PodTargets("app=vllm", (8000,))


class PodWorld:
    def __init__(self, api: FakeApi | None = None) -> None:
        self.api = api or FakeApi()
        self.log = self.api.log
        self.transport = MemoryTransport(self.api)

    def pod(self, name: str, *ips: str, **how: Any) -> str:
        """Create or replace; returns the uid."""
        made = pod(name, *(ips or (address_of(name),)), **{"labels": APP, **how})
        return str(self.api.put("pods", made)["metadata"]["uid"])

    def delete(self, name: str) -> None:
        self.log.delete("pods", "default", name)

    def pool(self, *ports: int, **labels: str) -> None:
        self.api.put("inferencepools", inference_pool("pool", *(ports or (8000,)), labels=labels or APP))

    def delete_pool(self) -> None:
        self.log.delete("inferencepools", "default", "pool")

    @asynccontextmanager
    async def discovering(
        self,
        selection: PodTargets | PoolReference = SELECTED,
        transport: ApiTransport | None = None,
        *,
        grace: float = 0.5,
        **timings: Any,
    ) -> AsyncIterator[SourceDiscovery]:
        source = PodsSource(
            transport or self.transport,
            "default",
            selection,
            grace=grace,
            timings=replace(virtual_timings(), **timings),
        )
        nobody_is_asked = MetadataClient(silence=SilenceTimings.detected_within(0))
        async with SourceDiscovery(source, client=nobody_is_asked) as discovery:
            yield discovery

    @asynccontextmanager
    async def recorder(
        self, selection: PodTargets | PoolReference = SELECTED, *, settle: float = 2.0, **timings: Any
    ) -> AsyncIterator[EventRecorder]:
        """As `World.recorder`."""
        async with (
            self.discovering(selection, **timings) as discovery,
            recording_events(discovery) as recorder,
        ):
            await asyncio.sleep(settle)
            recorder.start = len(recorder.events)
            yield recorder
