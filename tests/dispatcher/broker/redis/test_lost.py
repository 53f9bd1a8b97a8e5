"""A broker that loses keys, or is no longer the one that may be written to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from dispatcher.broker.contract.queue import QueueError, QueueFullError, QueueLimits, QueueRules
from dispatcher.broker.redis.broker import RedisBroker
from dispatcher.broker.redis.queue import RedisQueue
from tests.dispatcher.queued import answer, claimed, counts, submitted, until_ms
from tests.eventually import eventually
from tests.in_time import by, with_more_time
from tests.redis_server import RedisServer


@pytest.mark.parametrize("where", ["pending", "delayed", "claimed"])
@with_more_time(300)
async def test_a_request_that_the_broker_threw_away_stops_no_other(
    redis_url: str, where: str, ms: int
) -> None:
    """As a maxmemory policy other than noeviction does."""
    rules, name = QueueRules(lease_ms=ms), f"q{ms}"
    async with RedisBroker(redis_url) as broker, broker.queue(name, rules) as queue:
        await submitted(broker, queue, "lost")
        if where != "pending":
            claim = await claimed(queue)
            if where == "delayed":
                await queue.retry(claim, ms)
        for key in await broker._client.keys(f"adsum:{{{name}}}:e:*"):
            await broker._client.delete(key)
        await submitted(broker, queue, "kept")
        await until_ms(broker, await broker.now_ms() + ms + 1)
        assert [head.id for head in await queue.peek(9)] == ["kept"]
        [claim] = await queue.claim(9, owner="o")
        async with by(claim.leased_until_ms, broker.now_ms):
            assert await queue.finish(claim, answer(claim))

        async def is_buried() -> bool:
            await queue.sweep()
            return bool(await queue.dead_letters(9))

        await eventually(is_buried)  # what was claimed is left to its owner for a while after a silence
        assert await counts(queue) | {"retries": 0} == {
            "submitted": 2, "succeeded": 1, "failed": 1, "dead_letters": 1, "retries": 0
        }  # fmt: skip
        [letter] = await queue.dead_letters(9)
        assert "lost the request" in letter.reason


class Address:
    """A name that stands for one server after another: connections stay where they were made to."""

    def __init__(self, port: int) -> None:
        self.port = port

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        tasks: set[asyncio.Task[None]] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, back = await asyncio.open_connection("127.0.0.1", self.port)
            for source, sink in ((reader, back), (there, writer)):
                task = asyncio.create_task(pass_on(source, sink))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

        async def pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            try:
                while data := await source.read(65536):
                    sink.write(data)
            except ConnectionError:
                pass
            finally:
                sink.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for task in list(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_server_that_may_only_be_read_any_more_is_left(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """After a failover the old master answers on, as a replica: who keeps its connections writes nowhere."""
    with (
        RedisServer(tmp_path_factory.mktemp("old")) as old,
        RedisServer(tmp_path_factory.mktemp("new")) as new,
    ):
        address = Address(old.port)
        async with address.listening() as port:
            url = f"redis://127.0.0.1:{port}/0"
            async with (
                RedisBroker(url, answer_timeout=60) as broker,
                broker.queue("q", QueueRules()) as queue,
                RedisBroker(old.url, answer_timeout=60) as there,
            ):
                await asyncio.gather(*(submitted(broker, queue, f"r{n}") for n in range(20)))
                await there._client.execute_command("REPLICAOF", "127.0.0.1", str(new.port))
                address.port = new.port
                with pytest.raises(QueueError, match="read only"):
                    await submitted(broker, queue, "while it changes")

                async def written() -> bool:
                    try:
                        await submitted(broker, queue, "after it changed")
                    except QueueError:
                        return False
                    return True

                await eventually(written)


async def test_a_large_body_is_that_of_its_claim_though_the_broker_counts_anew(redis_url: str) -> None:
    """It is fetched after the claim. If Redis lost its data in between, the number is that of another request."""
    async with RedisBroker(redis_url) as broker, broker.queue("q", QueueRules()) as queue:
        assert isinstance(queue, RedisQueue)
        await submitted(broker, queue, "mine", payload=b"m" * 100_000)
        mine = await claimed(queue)
        await broker._client.flushdb()
        await submitted(broker, queue, "another", payload=b"a" * 100_000)
        another = await claimed(queue)
        assert mine.fence.partition(".")[0] == another.fence.partition(".")[0]
        assert await queue._fetch_body(mine) is None
        found = await queue._fetch_body(another)
        assert found is not None
        assert found.request.payload == b"a" * 100_000


async def test_what_the_broker_lost_fills_no_queue(redis_url: str) -> None:
    rules = QueueRules(limits=QueueLimits(requests=2))
    async with RedisBroker(redis_url) as broker, broker.queue("q", rules) as queue:
        for id in ("a", "b"):
            await submitted(broker, queue, id)
        await broker._client.delete(*await broker._client.keys("adsum:{q}:e:*"))
        assert await queue.peek(9) == []
        for id in ("c", "d"):
            await submitted(broker, queue, id)
        with pytest.raises(QueueFullError):
            await submitted(broker, queue, "e")
