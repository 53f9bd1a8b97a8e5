"""A broker of an installed package that fails in a way that no broker should: its faults are told, and pass."""

from pathlib import Path

import pytest

from tests.dispatcher.target import Target
from tests.dispatcher.web.test_queue_pages import OPEN, running
from tests.eventually import eventually
from tests.installed_package import install, see

MODULE = """\
from contextlib import asynccontextmanager
from dispatcher.broker.memory.broker import MemoryBroker

FAULTY = set()


def check(name):
    if name in FAULTY:
        raise OSError("the password is SECRET")


class Queue:
    def __init__(self, queue):
        self._queue = queue

    async def totals(self):
        check("totals")
        return await self._queue.totals()

    def __getattr__(self, name):
        return getattr(self._queue, name)


class Broker(MemoryBroker):
    async def ping(self):
        check("ping")
        return True

    @asynccontextmanager
    async def queue(self, name, rules):
        async with super().queue(name, rules) as queue:
            yield Queue(queue)


def open_broker(url):
    return Broker()
"""


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The methods of the broker that fail."""
    points = {"adsum.brokers": {"acme-faulty": "acme_faulty:open_broker"}}
    see(monkeypatch, install(tmp_path / "acme", "acme_faulty", points, module=MODULE))
    import acme_faulty  # type: ignore[import-not-found]

    methods: set[str] = acme_faulty.FAULTY
    return methods


@pytest.fixture
async def target() -> Target:
    """That nobody asks."""
    return Target()


async def test_no_page_shows_totals_that_are_no_longer_true(target: Target, faulty: set[str]) -> None:
    async with target, running(target.url, OPEN, broker="acme-faulty://") as page:

        async def state() -> tuple[str, bool]:
            queue = await page.queue()
            return queue["activity"], queue["totals"] is None

        async def scraped() -> bool:
            return "llm_d_async_async_queue_depth{" in await page.text("/metrics")

        async def is_idle() -> bool:
            return await state() == ("idle", False) and await scraped()

        async def is_away() -> bool:
            return await state() == ("away", True) and not await scraped()

        await eventually(is_idle)
        faulty.add("totals")
        await eventually(is_away)
        faulty.clear()
        await eventually(is_idle)


async def test_readiness_fails_and_comes_back(target: Target, faulty: set[str]) -> None:
    async with target, running(target.url, OPEN, broker="acme-faulty://") as page:

        async def is_ready(expected: int) -> bool:
            return await page.status("/readyz") == expected

        await eventually(lambda: is_ready(200))
        faulty.add("ping")
        await eventually(lambda: is_ready(503))
        assert "the broker fails, see the log: OSError" in (text := await page.text("/readyz"))
        assert "SECRET" not in text
        faulty.clear()
        await eventually(lambda: is_ready(200))
