"""Quotas that all replicas share: a sorted set of leased places for each key."""

import asyncio
from collections.abc import Collection, Sequence
from importlib.resources import files
from typing import Final

from redis.asyncio import Redis

from dispatcher.broker.ledger import Refusal
from dispatcher.broker.message import new_token
from dispatcher.broker.quota import Grant, Quota, QuotaMode
from dispatcher.broker.redis.batching import Arguments, CommandBatcher, Reply
from dispatcher.broker.redis.connection import ANSWER_TIMEOUT, as_queue_errors, server_time_ms
from dispatcher.broker.redis.subscriptions import Subscriptions
from runtime.resource_owner import ResourceOwner

SCRIPT: Final = files("dispatcher.broker.redis").joinpath("scripts/quota.lua").read_text()
CHANNEL: Final = "adsum:quotas:changed"


class RedisQuotas(ResourceOwner):
    """All keys of all quotas; an async context manager. `place`: the broker's, for errors."""

    def __init__(self, client: Redis, *, place: str = "") -> None:
        self._place = place
        self._client = client
        self._subscriptions = Subscriptions(client, {CHANNEL: None})
        self._changes = self._subscriptions.changes(CHANNEL)
        self._held: set[str] = set()
        self._batcher = CommandBatcher(self._send)

    async def _open(self) -> None:
        await self._stack.enter_async_context(self._subscriptions)
        await self._stack.enter_async_context(self._batcher)

    async def now_ms(self) -> int:
        """The broker's clock."""
        return await server_time_ms(self._client, self._place)

    async def acquire(self, key: str, quota: Quota) -> Grant | Refusal:
        grant, seen = Grant(key, new_token(), quota), self._changes.count

        def undo(answer: Reply) -> Arguments | None:
            return _words("give", grant) if answer[0] else None

        granted, until = await self._batcher.call(_words("take", grant), undo=undo)
        if not granted:
            return Refusal(f"the quota of {key} is used up", until if until >= 0 else None, seen)
        self._held.add(grant.id)
        return grant

    async def heartbeat(self, grants: Collection[Grant]) -> None:
        leased = (one for one in grants if one.quota.mode is QuotaMode.CONCURRENCY and one.id in self._held)
        await asyncio.gather(*(self._batcher.call(_words("heartbeat", grant)) for grant in leased))

    async def release(self, grant: Grant, *, used: bool) -> None:
        """As `dispatcher.broker.quota.Quotas`; while the broker is away it raises QueueError, and tells it later."""
        self._held.discard(grant.id)
        if grant.quota.mode is QuotaMode.CONCURRENCY or not used:
            await self._batcher.call(_words("give", grant), resend=True)

    async def wait(self, timeout: float, *, seen: int = -1) -> None:
        await self._changes.wait(timeout, seen)

    async def _send(self, operations: Sequence[Arguments]) -> Sequence[Reply]:
        calls = self._client.pipeline(transaction=False)
        for key, *arguments in operations:
            calls.eval(SCRIPT, 1, key, CHANNEL, *arguments)
        with as_queue_errors(self._place):
            async with asyncio.timeout(ANSWER_TIMEOUT):
                answers: Sequence[Reply] = await calls.execute()
        return answers


def _words(what: str, grant: Grant) -> Arguments:
    quota = grant.quota
    lasts = quota.window_ms if quota.mode is QuotaMode.RATE else quota.lease_ms
    return (f"adsum:{{quota:{grant.key}}}:{quota.mode.value}", what, grant.id, quota.limit, lasts)
