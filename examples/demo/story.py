"""What happens in half a minute, and how soon the picker knows of it."""

import asyncio
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from examples.demo.load import Load
from examples.demo.stage import EndpointView, Stage

_PATIENCE = 10.0
_LOOK = 0.002


@dataclass(frozen=True, slots=True)
class Happening:
    """One event: when it was (monotonic seconds), and the seconds until the picker knew; None: it never did."""

    what: str
    worker: str
    at: float
    known_after: float | None


@dataclass(slots=True)
class Story:
    """The happenings so far; `line` is what to show of the present."""

    stage: Stage
    load: Load
    happenings: list[Happening] = field(default_factory=list)
    line: str = "three workers serve"

    async def tell(self) -> None:
        """A worker joins, one's readiness flips, one is killed mid-stream, one drains."""
        await asyncio.sleep(4)
        await self._join("worker-4")
        await asyncio.sleep(4)
        await self._signal("is not ready", "worker-2", signal.SIGUSR1, avoided)
        await asyncio.sleep(3)
        await self._signal("is ready again", "worker-2", signal.SIGUSR1, there)
        await asyncio.sleep(4)
        victim = await self._in_mid_stream("worker-1", "worker-3")
        await self._signal("is killed while it streams (SIGKILL)", victim, signal.SIGKILL, avoided)
        await asyncio.sleep(5)
        await self._signal("drains (SIGTERM)", "worker-2", signal.SIGTERM, avoided)
        await self.stage.workers["worker-2"].wait()
        self.line = "worker-2 finished its requests and left"
        await asyncio.sleep(3)

    async def _join(self, worker: str) -> None:
        self.line = f"{worker} joins"
        await self.stage.add_worker(worker)
        await self._known("joins (from its ready line)", worker, time.monotonic(), there)

    async def _signal(self, what: str, worker: str, number: signal.Signals, known: "Known") -> None:
        self.line = f"{worker} {what}"
        at = time.monotonic()
        self.stage.workers[worker].send(number)
        await self._known(what, worker, at, known)

    async def _known(self, what: str, worker: str, at: float, known: "Known") -> None:
        while time.monotonic() < at + _PATIENCE:
            if known(worker, await self.stage.views()):
                self.happenings.append(Happening(what, worker, at, time.monotonic() - at))
                return
            await asyncio.sleep(_LOOK)
        self.happenings.append(Happening(what, worker, at, None))

    async def _in_mid_stream(self, *workers: str) -> str:
        """One of the workers, while it streams; the first one if none does for long."""
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            for worker in workers:
                if self.load.under_way(worker, streamed=True) >= 2:
                    return worker
            await asyncio.sleep(_LOOK)
        return workers[0]


Known = Callable[[str, list[EndpointView]], bool]


def there(worker: str, views: list[EndpointView]) -> bool:
    """The picker sends requests to it."""
    return any(view.id == worker and view.reachable for view in views)


def avoided(worker: str, views: list[EndpointView]) -> bool:
    """The picker sends it nothing: it is gone, or does not answer."""
    return not there(worker, views)
