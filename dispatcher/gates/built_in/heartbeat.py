"""Renews the leases of reservations while their holder runs."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from adsum.tasks import background
from dispatcher.broker.contract.queue import QueueError


@asynccontextmanager
async def heartbeat(send: Callable[[], Awaitable[None]], lease_ms: int) -> AsyncIterator[None]:
    """Call `send` three times a lease: one that the broker does not get is made up for by the next."""
    async with background(_send_heartbeats(send, lease_ms / 3000), "heartbeat"):
        yield


async def _send_heartbeats(send: Callable[[], Awaitable[None]], interval: float) -> None:
    while True:
        await asyncio.sleep(interval)
        with suppress(QueueError):
            await send()
