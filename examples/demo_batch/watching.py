"""What a bystander sees, ten times a second: the true load of the workers, the users, the dispatcher's budget."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import aiohttp

from dispatcher.gates.metrics_page import samples
from examples.demo.processes import DemoError
from examples.demo.stage import Stage
from examples.demo_batch.dispatching import Dispatching

_EVERY = 0.1
_PATIENCE = 15.0
_RUNNING, _WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
_PREFIX = "llm_d_async_async_"
_ENDS = ("succeeded", "failed", "expired", "cancelled", "dropped")
_COUNTED = {"submitted": "_total", **dict.fromkeys(_ENDS, "_total"), "backlog": ""}


@dataclass(frozen=True, slots=True)
class Sample:
    """One look. `at`: monotonic seconds; `load`: requests running and waiting in all workers, by their own pages.

    `interactive`: requests whose users wait. `budget`: max(0, D - B). `sent`, `answered`: of the batch so far.
    """

    at: float
    load: int
    interactive: int
    budget: float
    sent: int
    answered: int


@dataclass(frozen=True, slots=True)
class Page:
    """Numbers off one metrics page."""

    text: str

    def total(self, metric: str) -> float:
        """The sum of all samples of that name."""
        return float(sum(value for value, _ in samples(self.text, metric, {})))


class Watching:
    """`samples` so far. `run` looks until it is cancelled; DemoError when a process of the stage is gone."""

    def __init__(self, stage: Stage, dispatching: Dispatching, interactive: Callable[[], int]) -> None:
        self.samples: list[Sample] = []
        self._last = Page("")
        self._stage = stage
        self._dispatching = dispatching
        self._interactive = interactive
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_PATIENCE))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def run(self) -> None:
        """Look again and again."""
        while True:
            started = time.monotonic()
            self._check_alive()
            await self.look()
            await asyncio.sleep(max(0.0, started + _EVERY - time.monotonic()))

    async def look(self) -> None:
        """Take one more sample; DemoError when there is nothing to see."""
        try:
            await self._look()
        except (aiohttp.ClientError, TimeoutError) as error:
            await asyncio.sleep(_EVERY)  # processes are known to have ended a moment after their connections
            self._check_alive()
            raise DemoError(f"a metrics page cannot be read: {error or 'no answer'}") from error

    def _check_alive(self) -> None:
        self._stage.check_alive()
        self._dispatching.check_alive()

    async def _look(self) -> None:
        places = [f"http://{worker.ready['http']}" for worker in self._stage.workers.values()]
        interactive = self._interactive()
        ours, *workers = await asyncio.gather(*map(self._page, [self._dispatching.url, *places]))
        sample = Sample(
            at=time.monotonic(),
            load=int(sum(page.total(_RUNNING) + page.total(_WAITING) for page in workers)),
            interactive=max(interactive, self._interactive()),
            budget=ours.total(f"{_PREFIX}dispatch_budget"),
            sent=int(ours.total(f"{_PREFIX}dispatched_requests_total")),
            answered=int(ours.total(f"{_PREFIX}broker_succeeded_total")),
        )
        self.samples.append(sample)
        self._last = ours

    async def _page(self, url: str) -> Page:
        assert self._session is not None
        async with self._session.get(f"{url}/metrics") as answer:
            return Page(await answer.text())

    def counted(self) -> dict[str, int]:
        """What the broker had counted at the last look, over all processes."""
        return {name: int(self._last.total(f"{_PREFIX}broker_{name}{end}")) for name, end in _COUNTED.items()}
