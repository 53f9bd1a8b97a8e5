"""Receives what the broker publishes: one connection for all channels of one opened queue or ledger.

Redis delivers a message at most once, and not at all to a subscriber whose connection is down
(https://redis.io/docs/latest/develop/pubsub/#delivery-semantics). So a message is only a hint to look again: whoever waits
reads the state in Redis afterwards, and each new subscription counts as a message.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from adsum.tasks import BackgroundTasks
from dispatcher.broker.contract.ledger import Changes

RECONNECT_DELAY: Final = 0.2
"""Seconds."""
SUBSCRIBE_TIMEOUT: Final = 5.0
"""Seconds."""
IDLE_BEFORE_PING: Final = 10.0
"""Seconds without a message after which the broker is pinged; it has as long again to answer. Without it, a connection
whose server vanished without a FIN would never be noticed: a subscriber only reads."""

MessageHandler = Callable[[bytes], None]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Channel:
    on_message: MessageHandler | None = None
    changes: Changes = field(default_factory=Changes)
    users: int = 0


class Subscriptions:
    """An async context manager. Entering waits until the first channels are subscribed, or for `SUBSCRIBE_TIMEOUT`.

    A channel's `Changes` count its messages and its subscriptions: after an outage it is unknown what was published.
    """

    def __init__(self, client: Redis, handlers: dict[str, MessageHandler | None]) -> None:
        self._client = client
        self._channels = {name: _Channel(handler) for name, handler in handlers.items()}
        self._pubsub: PubSub | None = None
        self._sending = asyncio.Lock()
        self._tasks = BackgroundTasks()

    async def __aenter__(self) -> Self:
        self._tasks.start(self._run(), "subscriptions")
        for channel in list(self._channels.values()):
            await channel.changes.wait(SUBSCRIBE_TIMEOUT, 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.aclose()

    def changes(self, name: str) -> Changes:
        """The changes of a channel that was passed to the constructor."""
        return self._channels[name].changes

    @asynccontextmanager
    async def subscribed(self, name: str) -> AsyncIterator[Changes]:
        """Subscribe to one more channel inside the block; entering waits for it, at most `SUBSCRIBE_TIMEOUT`."""
        channel = self._channels.setdefault(name, _Channel())
        channel.users += 1
        try:
            if channel.users == 1:
                await self._send("subscribe", name)
            await channel.changes.wait(SUBSCRIBE_TIMEOUT, 0)
            yield channel.changes
        finally:
            channel.users -= 1
            if not channel.users:
                del self._channels[name]
                await self._send("unsubscribe", name)

    async def _send(self, command: str, name: str) -> None:
        async with self._sending:
            if self._pubsub is not None:
                with suppress(RedisError, OSError):  # the next connection subscribes to all channels
                    await getattr(self._pubsub, command)(name)

    async def _run(self) -> None:
        while True:
            try:
                async with self._client.pubsub() as pubsub:
                    try:
                        await self._listen(pubsub)
                    finally:
                        await self._stop_sending()
            except (RedisError, OSError):
                pass  # not logged here: the next command to the broker fails and is
            except Exception:  # without this task no wake-up would ever come
                log.exception("internal error in a subscription to the broker; it goes on")
            await asyncio.sleep(RECONNECT_DELAY)

    async def _stop_sending(self) -> None:
        """A `PubSub` that is closed under a command fails with AttributeError, or leaves the command's new connection open."""
        self._pubsub = None
        async with self._sending:
            pass

    async def _listen(self, pubsub: PubSub) -> None:
        known = set(self._channels)
        await pubsub.subscribe(*known)
        self._pubsub = pubsub
        # channels that were added during the await, when `_send` had no connection yet
        if added := self._channels.keys() - known:
            await pubsub.subscribe(*added)
        pinged = False
        while True:
            message = await pubsub.get_message(timeout=IDLE_BEFORE_PING)
            if message is not None:
                pinged = False
                self._handle(message)
            elif pinged:
                raise RedisConnectionError("no answer to a ping")
            else:
                pinged = True
                await pubsub.ping()

    def _handle(self, message: dict[str, Any]) -> None:
        if message["type"] not in ("subscribe", "message"):
            return
        channel = self._channels.get(message["channel"].decode())
        if channel is None:
            return
        if message["type"] == "message" and channel.on_message is not None:
            channel.on_message(message["data"])
        channel.changes.tell()
