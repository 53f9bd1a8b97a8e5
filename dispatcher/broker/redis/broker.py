"""The broker in Redis or Valkey: opens queues, ledgers, quotas and intakes over one client."""

from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Self

from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError

from adsum.quoting import printable
from dispatcher.broker.contract.ledger import Ledger, Quotas
from dispatcher.broker.contract.queue import Queue, QueueError, QueueRules
from dispatcher.broker.contract.validation import checked_name, checked_rules
from dispatcher.broker.redis.client.connection import ANSWER_TIMEOUT, as_queue_errors, connect, server_time_ms
from dispatcher.broker.redis.go_queues.intake import GoIntake, GoSource
from dispatcher.broker.redis.ledger import RedisLedger, RedisQuotas
from dispatcher.broker.redis.queue import RedisQueue
from dispatcher.broker.urls import without_credentials

_PING_KEY: Final = "adsum:ping"
_PING_KEPT_MS: Final = 60_000


class RedisBroker:
    """Implements `dispatcher.broker.contract.queue.Broker`. Raises ValueError for the URL of another kind of broker.

    Entering raises QueueError if the server is away. `answer_timeout`: seconds after which a server that does not answer
    counts as away.
    """

    def __init__(self, url: str, *, answer_timeout: float = ANSWER_TIMEOUT) -> None:
        self._client = connect(url, answer_timeout=answer_timeout)
        self._address = without_credentials(url)

    async def __aenter__(self) -> Self:
        try:
            await self.now_ms()
        except BaseException:
            await self._client.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def now_ms(self) -> int:
        return await server_time_ms(self._client, self._address)

    async def ping(self) -> bool:
        """Writes, because a server that is out of memory, cannot save, or has become a replica still answers."""
        try:
            with as_queue_errors(self._address):
                await self._client.set(_PING_KEY, b"", px=_PING_KEPT_MS)
        except QueueError as error:
            cause = error.__cause__
            if not isinstance(cause, ResponseError):
                return False
            if isinstance(cause, OutOfMemoryError | ReadOnlyError) or str(cause).startswith("MISCONF"):
                raise QueueError(f"it refuses to write: {printable(str(cause), 120)}") from error
        return True

    async def eviction_policy(self) -> str | None:
        """The server's `maxmemory-policy`; None if CONFIG is forbidden, as on most hosted servers."""
        client: Any = self._client
        try:
            with as_queue_errors(self._address):
                found: dict[Any, str] = await client.config_get("maxmemory-policy")
        except QueueError:
            return None
        return next(iter(found.values()), None)

    def queue(self, name: str, rules: QueueRules) -> AbstractAsyncContextManager[Queue]:
        return RedisQueue(self._client, self._address, checked_name(name), checked_rules(name, rules))

    def go_intake(self, queue: str, rules: QueueRules, source: GoSource) -> GoIntake:
        """While entered, moves what Go producers submit into `queue`."""
        return GoIntake(self._client, self._address, checked_name(queue), rules, source)

    def ledger(self, target: str) -> AbstractAsyncContextManager[Ledger]:
        return RedisLedger(self._client, target, address=self._address)

    def quotas(self) -> AbstractAsyncContextManager[Quotas]:
        return RedisQuotas(self._client, address=self._address)
