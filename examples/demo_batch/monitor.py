"""Samples the workers' true load, the users and the dispatcher's budget ten times a second."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import aiohttp

from dispatcher.gates.metering.readers import samples
from examples.demo.cluster import DemoCluster
from examples.demo.processes import DemoError
from examples.demo_batch.dispatcher import BatchDispatcher

_INTERVAL = 0.1
_TIMEOUT = 15.0
_RUNNING, _WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
_PREFIX = "llm_d_async_async_"
_OUTCOMES = ("succeeded", "failed", "expired", "cancelled", "dropped")
_COUNTED = {"submitted": "_total", **dict.fromkeys(_OUTCOMES, "_total"), "backlog": ""}


@dataclass(frozen=True, slots=True)
class Sample:
    """`at`: monotonic seconds. `load`: requests running and waiting in all workers, by their own metrics pages.
    `interactive`: requests whose users wait. `budget`: max(0, D - B). `sent`, `answered`: totals of the batch.
    """

    at: float
    load: int
    interactive: int
    budget: float
    sent: int
    answered: int


@dataclass(frozen=True, slots=True)
class Page:
    """One metrics page."""

    text: str

    def total(self, metric: str) -> float:
        """The sum of all samples of that name."""
        return float(sum(value for value, _ in samples(self.text.encode(), metric, {})))


class PoolMonitor:
    """Collects `samples` while `run` runs. Raises DemoError if a process of the cluster has exited."""

    def __init__(
        self, cluster: DemoCluster, dispatcher: BatchDispatcher, interactive: Callable[[], int]
    ) -> None:
        self.samples: list[Sample] = []
        self._last = Page("")
        self._cluster = cluster
        self._dispatcher = dispatcher
        self._interactive = interactive
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def run(self) -> None:
        """Take samples until cancelled."""
        while True:
            started = time.monotonic()
            self._check_alive()
            await self.sample()
            await asyncio.sleep(max(0.0, started + _INTERVAL - time.monotonic()))

    async def sample(self) -> None:
        """Take one sample; raises DemoError if a metrics page cannot be read."""
        try:
            await self._sample()
        except (aiohttp.ClientError, TimeoutError) as error:
            await asyncio.sleep(_INTERVAL)  # a connection ends before asyncio reports that its process exited
            self._check_alive()
            raise DemoError(f"a metrics page cannot be read: {error or 'no answer'}") from error

    def _check_alive(self) -> None:
        self._cluster.check_alive()
        self._dispatcher.check_alive()

    async def _sample(self) -> None:
        urls = [f"http://{worker.ready['http']}" for worker in self._cluster.workers.values()]
        interactive = self._interactive()
        own_page, *workers = await asyncio.gather(*map(self._page, [self._dispatcher.url, *urls]))
        sample = Sample(
            at=time.monotonic(),
            load=int(sum(page.total(_RUNNING) + page.total(_WAITING) for page in workers)),
            interactive=max(interactive, self._interactive()),
            budget=own_page.total(f"{_PREFIX}dispatch_budget"),
            sent=int(own_page.total(f"{_PREFIX}dispatched_requests_total")),
            answered=int(own_page.total(f"{_PREFIX}broker_succeeded_total")),
        )
        self.samples.append(sample)
        self._last = own_page

    async def _page(self, url: str) -> Page:
        assert self._session is not None
        async with self._session.get(f"{url}/metrics") as answer:
            return Page(await answer.text())

    def counted(self) -> dict[str, int]:
        """The broker's totals in the last sample, over all processes."""
        return {name: int(self._last.total(f"{_PREFIX}broker_{name}{end}")) for name, end in _COUNTED.items()}
