"""The broker on one Redis or Valkey server, or on whatever speaks for several."""

from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self

from dispatcher.broker.ledger import Ledger
from dispatcher.broker.queue import Queue, QueueError, QueueRules
from dispatcher.broker.quota import Quotas
from dispatcher.broker.redis.connection import as_queue_errors, connect, server_time_ms, where
from dispatcher.broker.redis.intake import GoIntake, GoSource
from dispatcher.broker.redis.ledger import RedisLedger
from dispatcher.broker.redis.queue import RedisQueue
from dispatcher.broker.redis.quota import RedisQuotas
from dispatcher.broker.validation import checked_name, checked_rules


class RedisBroker:
    """As `dispatcher.broker.queue.Broker`; entering raises QueueError where nobody answers, ValueError is another URL's."""

    def __init__(self, url: str) -> None:
        self._client = connect(url)
        self._place = where(url)

    async def __aenter__(self) -> Self:
        try:
            await self.now_ms()
        except BaseException:
            await self._client.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def now_ms(self) -> int:
        return await server_time_ms(self._client, self._place)

    async def ping(self) -> bool:
        try:
            await self.now_ms()
        except QueueError:
            return False
        return True

    async def eviction_policy(self) -> str | None:
        """The server's `maxmemory-policy`; None where it does not tell, as hosted ones often do not."""
        client: Any = self._client
        try:
            with as_queue_errors(self._place):
                told: dict[Any, str] = await client.config_get("maxmemory-policy")
        except QueueError:
            return None
        return next(iter(told.values()), None)

    def queue(self, name: str, rules: QueueRules) -> AbstractAsyncContextManager[Queue]:
        return RedisQueue(self._client, self._place, checked_name(name), checked_rules(name, rules))

    def go_intake(self, queue: str, rules: QueueRules, source: GoSource) -> GoIntake:
        """What Go producers submit becomes requests of `queue` while it is entered."""
        return GoIntake(self._client, self._place, checked_name(queue), rules, source)

    def ledger(self, target: str) -> AbstractAsyncContextManager[Ledger]:
        return RedisLedger(self._client, target, place=self._place)

    def quotas(self) -> AbstractAsyncContextManager[Quotas]:
        return RedisQuotas(self._client, place=self._place)
