"""A queue's keys lie in one slot: everything works on a server in cluster mode, which refuses what spans slots."""

import re
from importlib.resources import files

import pytest

from dispatcher.broker.contract.message import ErrorCode
from dispatcher.broker.contract.queue import QueueRules, State
from dispatcher.broker.redis.broker import RedisBroker
from dispatcher.broker.redis.scripting import script_text
from tests.dispatcher.queued import answer, claimed, counts, lapsed, submitted
from tests.redis_server import RedisServer

SCRIPTS = sorted(
    path.name.removesuffix(".lua")
    for path in files("dispatcher.broker.redis").joinpath("scripts", "queue").iterdir()
    if not path.name.startswith("part_")
)


async def test_a_whole_life_on_a_cluster(tmp_path_factory: pytest.TempPathFactory) -> None:
    rules = QueueRules(lease_ms=200, result_ttl_ms=60_000, weights={"a": 2.0})
    with RedisServer(tmp_path_factory.mktemp("cluster"), cluster=True) as server:
        async with RedisBroker(server.url) as broker, broker.queue("q", rules) as queue:
            for n in range(6):
                await submitted(broker, queue, f"r{n}", tenant="ab"[n % 2], idempotency_key=f"k{n}")
            assert len(await queue.peek(9)) == 6
            first, second, third = await queue.claim(3, owner="o")
            assert await queue.extend([first, second]) == [True, True]
            assert await queue.finish(first, answer(first))
            assert await queue.retry(second, 1)
            assert await queue.release([third]) == 1
            assert await queue.wait_result(first.request.id, timeout=60) is not None
            assert await queue.cancel("r5") is State.PENDING
            await queue.reject(b"x", "bad", id="bad", code=ErrorCode.INVALID_REQUEST)
            await claimed(queue)
            await lapsed(queue)
            await queue.wait(0.01)
            assert await queue.ack_results(await queue.lease_results(9)) == 3
            assert len(await queue.dead_letters(9)) == 1
            assert await counts(queue) == {
                "submitted": 7, "succeeded": 1, "failed": 1, "cancelled": 1, "pending": 4,
                "retries": 1, "redelivered": 1, "dead_letters": 1,
            }  # fmt: skip
        rules = QueueRules(result_list="{q}:results")
        async with RedisBroker(server.url) as broker, broker.queue("q", rules) as queue:
            await submitted(broker, queue, "listed", tier=-5)
            for claim in await queue.claim(9, owner="o"):
                assert await queue.finish(claim, answer(claim))


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_name_no_key_but_their_queues_own(name: str) -> None:
    keys = re.findall(r"call\('[A-Z]+', ([^,)]+)", script_text(name))
    foreign = {
        key
        for key in keys
        if not key.startswith(("P ..", "key", "index", "order", "line", "idle", "turn.line"))
    }
    # the lists and sorted sets of the Go form, which are named from outside, and where their producers leave their marks
    assert foreign <= {"e.list", "KEYS[2]", "'request-cancel:' .. e.id"}
