"""What the broker publishes, as it comes: one connection for all channels of one opened queue."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.exceptions import ConnectionError as LostError
from redis.exceptions import RedisError

from dispatcher.broker.wake_up import Changes
from runtime.tasks import BackgroundTasks

AGAIN: Final = 0.2
"""Seconds between attempts to listen again."""
STANDS_WITHIN: Final = 5.0
"""Seconds for a subscription to stand."""
QUIET: Final = 10.0
"""Seconds of silence after which the broker is asked whether it is still there, and has as long again to answer."""

Hear = Callable[[bytes], None]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Channel:
    hear: Hear | None = None
    changes: Changes = field(default_factory=Changes)
    users: int = 0


class Subscriptions:
    """An async context manager; entered: the first channels stand, or will as soon as the broker answers.

    A channel's `Changes` count its messages, and each time it stands again: what was said meanwhile is not known.
    """

    def __init__(self, client: Redis, hear: dict[str, Hear | None]) -> None:
        self._client = client
        self._channels = {name: _Channel(what) for name, what in hear.items()}
        self._pubsub: PubSub | None = None
        self._tasks = BackgroundTasks()

    async def __aenter__(self) -> Self:
        self._tasks.start(self._run(), "subscriptions")
        for channel in list(self._channels.values()):
            await channel.changes.wait(STANDS_WITHIN, 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._tasks.aclose()

    def changes(self, name: str) -> Changes:
        """Of a channel that was there from the start."""
        return self._channels[name].changes

    @asynccontextmanager
    async def watching(self, name: str) -> AsyncIterator[Changes]:
        """One more channel while inside; entered: it stands, or the broker is away."""
        channel = self._channels.setdefault(name, _Channel())
        channel.users += 1
        try:
            if channel.users == 1:
                await self._tell_broker("subscribe", name)
            await channel.changes.wait(STANDS_WITHIN, 0)
            yield channel.changes
        finally:
            channel.users -= 1
            if not channel.users:
                del self._channels[name]
                await self._tell_broker("unsubscribe", name)

    async def _tell_broker(self, word: str, name: str) -> None:
        if self._pubsub is not None:
            with suppress(RedisError, OSError):  # the next connection says it again
                await getattr(self._pubsub, word)(name)

    async def _run(self) -> None:
        while True:
            try:
                async with self._client.pubsub() as pubsub:
                    await self._listen(pubsub)
            except (RedisError, OSError):
                pass  # the broker is away, which whoever asks it something is told
            except Exception:  # deaf for good would be worse
                log.exception("a fault while listening to the broker; it goes on")
            self._pubsub = None
            await asyncio.sleep(AGAIN)

    async def _listen(self, pubsub: PubSub) -> None:
        told = set(self._channels)
        await pubsub.subscribe(*told)
        self._pubsub = pubsub
        if more := self._channels.keys() - told:
            await pubsub.subscribe(*more)
        asked = False
        while True:
            message = await pubsub.get_message(timeout=QUIET)
            if message is not None:
                asked = False
                self._heard(message)
            elif asked:
                raise LostError("silent")
            else:
                asked = True
                await pubsub.ping()

    def _heard(self, message: dict[str, Any]) -> None:
        if message["type"] not in ("subscribe", "message"):
            return
        channel = self._channels.get(message["channel"].decode())
        if channel is None:
            return
        if message["type"] == "message" and channel.hear is not None:
            channel.hear(message["data"])
        channel.changes.tell()
