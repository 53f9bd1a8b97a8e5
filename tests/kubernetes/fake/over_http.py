"""A source over real sockets, with durations short enough for tests."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

import pytest

from discovery import DiscoveryError, SourceDiscovery
from discovery.kubernetes import Cluster, ClusterTransport, Timings
from tests.eventually import eventually
from tests.kubernetes.fake.event_recorder import EventRecorder
from tests.kubernetes.fake.world import World, within

FAST: Final = Timings(
    backoff=(0.01, 0.2),
    watch_timeout=(1.0, 1.0),
    watch_slack=0.3,
    list_deadline=5.0,
    short_watch=0.05,
    rewatch_delay=0.01,
    connect_timeout=0.3,
    header_deadline=0.4,
    token_refresh=0.05,
    credentials_deadline=0.5,
)
LONG_WATCHES: Final = replace(FAST, watch_timeout=(300.0, 300.0))
PATIENT: Final = replace(
    LONG_WATCHES, list_deadline=60.0, connect_timeout=60.0, header_deadline=60.0, credentials_deadline=60.0
)
"""For servers that answer, however slow the machine is."""


@asynccontextmanager
async def watching(
    world: World, cluster: Cluster, timings: Timings = PATIENT
) -> AsyncIterator[EventRecorder]:
    transport = ClusterTransport(cluster, timings)
    async with world.recorder(transport, settle=0.0, grace=0.05, **fields_of(timings)) as recorder:
        await within(2, lambda: recorder.uids == world.uids)
        await within(2, lambda: world.api.watches == 1)
        await asyncio.sleep(2 * timings.short_watch)
        recorder.start = len(recorder.events)
        yield recorder


def fields_of(timings: Timings) -> dict[str, Any]:
    return {field.name: getattr(timings, field.name) for field in dataclasses.fields(timings)}


async def assert_refused(service: SourceDiscovery, seconds: float, *said: str) -> None:
    """No list within `seconds`; the error says so and all of that, at the first time on a machine that is not busy."""

    async def is_said() -> bool:
        with pytest.raises(DiscoveryError) as caught:
            await service.list_instances("dynamo", "decode", timeout=seconds)
        return all(words in str(caught.value) for words in said)

    await eventually(is_said)


async def assert_changes_arrive(world: World, recorder: EventRecorder, seconds: float) -> None:
    """I4: the set is right again, and goes on being right."""
    world.delete("a")
    await within(seconds, lambda: recorder.uids == world.uids)
    world.pod("late")
    await within(1, lambda: recorder.uids == world.uids)
    assert recorder.transitions() == ["-a:deleted", "+late"]
