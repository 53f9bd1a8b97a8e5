"""Channels of the broker that are subscribed to while their connection comes and goes."""

import asyncio
from typing import Any

import pytest
from redis.asyncio.client import PubSub
from redis.exceptions import ConnectionError as RedisConnectionError

from dispatcher.broker.redis.client.connection import connect
from dispatcher.broker.redis.client.subscriptions import Subscriptions


async def test_a_connection_is_not_closed_under_a_command_and_its_channel_is_subscribed_on_the_next(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way, may_end, broken = asyncio.Event(), asyncio.Event(), asyncio.Event()
    closed_under_way: list[bool] = []
    subscribe, get_message, aclose = PubSub.subscribe, PubSub.get_message, PubSub.aclose

    async def slow_subscribe(self: PubSub, *names: Any) -> Any:
        if "late" in names and not under_way.is_set():
            under_way.set()
            await may_end.wait()
            raise RedisConnectionError("reset")
        return await subscribe(self, *names)

    async def breaking_get_message(self: PubSub, *args: Any, **kwargs: Any) -> Any:
        if under_way.is_set() and not broken.is_set():
            broken.set()
            raise RedisConnectionError("reset")
        return await get_message(self, *args, timeout=0.01)

    async def seen_aclose(self: PubSub) -> None:
        closed_under_way.append(under_way.is_set() and not may_end.is_set())
        await aclose(self)

    monkeypatch.setattr(PubSub, "subscribe", slow_subscribe)
    monkeypatch.setattr(PubSub, "get_message", breaking_get_message)
    monkeypatch.setattr(PubSub, "aclose", seen_aclose)

    async def waiting(subscriptions: Subscriptions) -> None:
        async with subscriptions.subscribed("late") as changes:
            assert changes.count

    async with connect(redis_url) as client, Subscriptions(client, {"first": None}) as subscriptions:
        waiter = asyncio.create_task(waiting(subscriptions))
        await broken.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not closed_under_way
        may_end.set()
        await waiter
    assert closed_under_way[0] is False
