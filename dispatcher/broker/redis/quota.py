"""Tenant quotas in Redis, shared by all replicas: a sorted set of grants for each key."""

import asyncio
from collections.abc import Collection, Sequence
from importlib.resources import files
from typing import Final

from redis.asyncio import Redis

from adsum.resource_owner import ResourceOwner
from dispatcher.broker.contract.ledger import Refusal
from dispatcher.broker.contract.message import new_token
from dispatcher.broker.contract.quota import Grant, Quota, QuotaMode
from dispatcher.broker.redis.client.batching import Arguments, CommandBatcher, Reply
from dispatcher.broker.redis.client.connection import ANSWER_TIMEOUT, as_queue_errors, server_time_ms
from dispatcher.broker.redis.client.subscriptions import Subscriptions

_TEXT: Final = files("dispatcher.broker.redis").joinpath("scripts/quota.lua").read_text()
SCRIPT: Final = "".join(line for line in _TEXT.splitlines(True) if not line.startswith("--"))
"""Without its comments: it is sent with every call. A pipeline cannot handle NOSCRIPT, so EVALSHA is no choice there
(https://redis.io/docs/latest/develop/programmability/eval-intro/#evalsha-in-the-context-of-pipelining)."""
CHANNEL: Final = "adsum:quotas:changed"


class RedisQuotas(ResourceOwner):
    """Implements `dispatcher.broker.contract.quota.Quotas`; an async context manager. `address`: the broker's, for errors.

    Each key is one operation of a pipeline, not one script over all: keys of different tenants lie in different slots.
    """

    def __init__(self, client: Redis, *, address: str = "") -> None:
        self._address = address
        self._client = client
        self._subscriptions = Subscriptions(client, {CHANNEL: None})
        self._changes = self._subscriptions.changes(CHANNEL)
        self._held: set[str] = set()
        self._batcher = CommandBatcher(self._send)

    async def _open(self) -> None:
        await self._stack.enter_async_context(self._subscriptions)
        await self._stack.enter_async_context(self._batcher)

    async def now_ms(self) -> int:
        return await server_time_ms(self._client, self._address)

    async def acquire(self, key: str, quota: Quota) -> Grant | Refusal:
        grant, seen = Grant(key, new_token(), quota), self._changes.count

        def undo(reply: Reply) -> Arguments | None:
            return _operation("give", grant) if reply[0] else None

        granted, until = await self._batcher.call(_operation("take", grant), undo=undo)
        if not granted:
            return Refusal(f"the quota of {key} is used up", until if until >= 0 else None, seen)
        self._held.add(grant.id)
        return grant

    async def heartbeat(self, grants: Collection[Grant]) -> None:
        # A rate needs none. A grant that has been released since is left out: its heartbeat would grant it again.
        leased = (one for one in grants if one.quota.mode is QuotaMode.CONCURRENCY and one.id in self._held)
        await asyncio.gather(*(self._batcher.call(_operation("heartbeat", grant)) for grant in leased))

    async def release(self, grant: Grant, *, used: bool) -> None:
        """If the broker is away, raises QueueError and sends it again when the broker is back."""
        self._held.discard(grant.id)
        if grant.quota.mode is QuotaMode.CONCURRENCY or not used:
            await self._batcher.call(_operation("give", grant), resend=True)

    async def wait(self, timeout: float, *, seen: int = -1) -> None:
        await self._changes.wait(timeout, seen)

    async def _send(self, operations: Sequence[Arguments]) -> Sequence[Reply]:
        calls = self._client.pipeline(transaction=False)
        for key, *arguments in operations:
            calls.eval(SCRIPT, 1, key, CHANNEL, *arguments)
        with as_queue_errors(self._address):
            async with asyncio.timeout(ANSWER_TIMEOUT):
                answers: Sequence[Reply] = await calls.execute()
        return answers


def _operation(name: str, grant: Grant) -> Arguments:
    quota = grant.quota
    duration_ms = quota.window_ms if quota.mode is QuotaMode.RATE else quota.lease_ms
    return (f"adsum:{{quota:{grant.key}}}:{quota.mode.value}", name, grant.id, quota.limit, duration_ms)
