"""Runs the demo's events for half a minute and measures how soon the picker notices each of them."""

import asyncio
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from examples.demo.cluster import DemoCluster, EndpointView
from examples.demo.load import LoadGenerator

_NOTICE_TIMEOUT = 10.0
_POLL_INTERVAL = 0.002


@dataclass(frozen=True, slots=True)
class ScenarioEvent:
    """One event at a worker. `at`: monotonic seconds; `seconds_to_notice`: until the picker knew, None: it never did."""

    what: str
    worker: str
    at: float
    seconds_to_notice: float | None


@dataclass(slots=True)
class Scenario:
    """`events` so far; `line` is shown as the current one."""

    cluster: DemoCluster
    load: LoadGenerator
    events: list[ScenarioEvent] = field(default_factory=list)
    line: str = "three workers serve"

    async def run(self) -> None:
        """A worker joins, one's readiness flips, one is killed mid-stream, one drains."""
        await asyncio.sleep(4)
        await self._join("worker-4")
        await asyncio.sleep(4)
        await self._signal("is not ready", "worker-2", signal.SIGUSR1, is_avoided)
        await asyncio.sleep(3)
        await self._signal("is ready again", "worker-2", signal.SIGUSR1, is_routed_to)
        await asyncio.sleep(4)
        victim = await self._streaming_worker("worker-1", "worker-3")
        await self._signal("is killed while it streams (SIGKILL)", victim, signal.SIGKILL, is_avoided)
        await asyncio.sleep(5)
        await self._signal("drains (SIGTERM)", "worker-2", signal.SIGTERM, is_avoided)
        await self.cluster.workers["worker-2"].wait()
        self.line = "worker-2 finished its requests and left"
        await asyncio.sleep(3)

    async def _join(self, worker: str) -> None:
        self.line = f"{worker} joins"
        await self.cluster.add_worker(worker)
        await self._wait_until_noticed("joins (from its ready line)", worker, time.monotonic(), is_routed_to)

    async def _signal(self, what: str, worker: str, number: signal.Signals, condition: "Condition") -> None:
        self.line = f"{worker} {what}"
        at = time.monotonic()
        self.cluster.workers[worker].send(number)
        await self._wait_until_noticed(what, worker, at, condition)

    async def _wait_until_noticed(self, what: str, worker: str, at: float, condition: "Condition") -> None:
        while time.monotonic() < at + _NOTICE_TIMEOUT:
            if condition(worker, await self.cluster.views()):
                self.events.append(ScenarioEvent(what, worker, at, time.monotonic() - at))
                return
            await asyncio.sleep(_POLL_INTERVAL)
        self.events.append(ScenarioEvent(what, worker, at, None))

    async def _streaming_worker(self, *workers: str) -> str:
        """The first of the workers that streams at least two responses; the first of all after a time-out."""
        deadline = time.monotonic() + _NOTICE_TIMEOUT
        while time.monotonic() < deadline:
            for worker in workers:
                if self.load.in_flight(worker, streamed=True) >= 2:
                    return worker
            await asyncio.sleep(_POLL_INTERVAL)
        return workers[0]


Condition = Callable[[str, list[EndpointView]], bool]


def is_routed_to(worker: str, views: list[EndpointView]) -> bool:
    """Whether the picker sends requests to the worker."""
    return any(view.id == worker and view.reachable for view in views)


def is_avoided(worker: str, views: list[EndpointView]) -> bool:
    """Whether the picker sends it nothing, because it left or is unreachable."""
    return not is_routed_to(worker, views)
