"""Who waits, and how many."""

from dispatcher.broker.contract.queue import Broker, Queue, QueueRules, TenantBacklog
from tests.dispatcher.queued import HOUR, submitted


async def test_the_tenants_that_wait_by_turn(broker: Broker, queue: Queue) -> None:
    assert list(await queue.backlog(10)) == []
    soon = await broker.now_ms() + HOUR
    for n in range(3):
        await submitted(broker, queue, f"a{n}", tenant="a", deadline_ms=soon + n)
    await submitted(broker, queue, "b0", tenant="b", deadline_ms=soon + 9)
    both = [TenantBacklog("a", 3, soon), TenantBacklog("b", 1, soon + 9)]
    assert list(await queue.backlog(10)) == both
    assert list(await queue.backlog(1)) == both[:1]
    assert list(await queue.backlog(10)) == both, "it changes nothing"
    [claim] = await queue.claim(1, owner="o")
    assert list(await queue.backlog(10)) == [
        TenantBacklog("b", 1, soon + 9),
        TenantBacklog("a", 2, soon + 1),
    ]
    await queue.retry(claim, HOUR)
    assert sum(one.waiting for one in await queue.backlog(10)) == 3, "without those that wait for a retry"


async def test_a_tenant_of_several_tiers_is_there_once(broker: Broker) -> None:
    async with broker.queue("q", QueueRules(strict_tiers=True)) as queue:
        soon = await broker.now_ms() + HOUR
        await submitted(broker, queue, "a1", tenant="a", deadline_ms=soon, tier=1)
        await submitted(broker, queue, "b0", tenant="b", deadline_ms=soon + 1)
        await submitted(broker, queue, "a0", tenant="a", deadline_ms=soon + 2)
        assert list(await queue.backlog(10)) == [TenantBacklog("a", 2, soon), TenantBacklog("b", 1, soon + 1)]


async def test_it_takes_no_wake_up_from_those_who_wait(broker: Broker, queue: Queue) -> None:
    assert list(await queue.peek(1)) == []
    await submitted(broker, queue, "a0")
    await queue.backlog(10)
    assert await queue.wait(60.0)
