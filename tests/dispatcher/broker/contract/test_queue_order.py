"""Who waits, how many, and who goes next."""

import math
from collections import Counter

from dispatcher.broker.contract.message import Claim
from dispatcher.broker.contract.queue import Broker, Queue, QueueRules, TenantBacklog
from tests.dispatcher.queued import HOUR, lapsed, submitted


async def order(queue: Queue, limit: int = 100, **more: object) -> list[str]:
    """The ids as they are claimed; what `peek` said before is the same."""
    seen = [head.id for head in await queue.peek(limit, **more)]  # type: ignore[arg-type]
    ids = [claim.request.id for claim in await queue.claim(limit, owner="o", **more)]  # type: ignore[arg-type]
    assert seen == ids
    return ids


async def test_08_earliest_deadline_first_and_ties_by_arrival(broker: Broker, queue: Queue) -> None:
    deadline = await broker.now_ms() + HOUR
    for id, later in [("low", 1000), ("high", 100), ("c", 50), ("a", 50), ("d", 50), ("b", 50)]:
        await submitted(broker, queue, id, deadline_ms=deadline + later)
    assert await order(queue) == ["c", "a", "d", "b", "high", "low"]


async def test_08_the_place_survives_retry_release_and_reclaim(broker: Broker) -> None:
    async with broker.queue("q", QueueRules(lease_ms=200)) as queue:
        for n in range(4):
            await submitted(broker, queue, f"r{n}", within_ms=HOUR + n * 1000)
        retried, released, _ = await queue.claim(3, owner="o")
        await queue.retry(retried, 1)
        await queue.release([released])
        await lapsed(queue)
        assert await order(queue) == ["r0", "r1", "r2", "r3"]


async def test_peek_changes_nothing(broker: Broker, queue: Queue) -> None:
    for n in range(5):
        await submitted(broker, queue, f"r{n}", within_ms=HOUR + n * 1000)
    assert [head.id for head in await queue.peek(3)] == ["r0", "r1", "r2"]
    assert [head.id for head in await queue.peek(3)] == ["r0", "r1", "r2"]
    assert (await queue.totals()).claimed == 0


async def test_18_one_request_of_another_tenant_goes_second_at_the_latest(
    broker: Broker, queue: Queue
) -> None:
    for n in range(300):
        await submitted(broker, queue, f"a{n}", tenant="a")
    await order(queue, 50)
    await submitted(broker, queue, "b", tenant="b", within_ms=10 * HOUR)
    assert "b" in await order(queue, 2)


async def test_18_shares_follow_the_weights(broker: Broker) -> None:
    async with broker.queue("q", QueueRules(weights={"a": 3.0, "b": 1.0})) as queue:
        for n in range(200):
            for tenant in ("a", "b", "c"):
                await submitted(broker, queue, f"{tenant}{n}", tenant=tenant)
        taken: Counter[str] = Counter()
        for batch in (1, 7, 64, 100, 28):
            taken.update(id[0] for id in await order(queue, batch))
        assert sum(taken.values()) == 200
        for tenant, share in (("a", 0.6), ("b", 0.2), ("c", 0.2)):
            assert math.isclose(taken[tenant] / 200, share, abs_tol=0.02)


async def test_18_a_tenant_with_one_request_at_a_time_gets_no_more_than_its_share(
    broker: Broker, queue: Queue
) -> None:
    for n in range(60):
        await submitted(broker, queue, f"a{n}", tenant="a")
    await submitted(broker, queue, "b", tenant="b")
    taken = Counter[str]()
    for _ in range(40):
        [id] = await order(queue, 1)
        taken[id[0]] += 1
        if id[0] == "b":
            await submitted(broker, queue, "b", tenant="b")
    assert abs(taken["a"] - taken["b"]) <= 2


async def test_18_who_was_away_has_saved_up_no_turns(broker: Broker, queue: Queue) -> None:
    await submitted(broker, queue, "b-early", tenant="b")
    await order(queue, 1)
    for n in range(100):
        await submitted(broker, queue, f"a{n}", tenant="a")
    await order(queue, 80)
    for n in range(10):
        await submitted(broker, queue, f"b{n}", tenant="b")
    assert Counter(id[0] for id in await order(queue, 10)) == {"a": 5, "b": 5}


async def test_18_a_release_gives_the_turn_back(broker: Broker, queue: Queue) -> None:
    for tenant in ("a", "b"):
        for n in range(10):
            await submitted(broker, queue, f"{tenant}{n}", tenant=tenant)
    for _ in range(5):
        claims: list[Claim] = [*await queue.claim(1, owner="o", skip_tenants=["b"])]
        await queue.release(claims)
    assert Counter(id[0] for id in await order(queue, 4)) == {"a": 2, "b": 2}


async def test_tenants_that_are_skipped_hold_up_nobody(broker: Broker, queue: Queue) -> None:
    for tenant in ("a", "b", "c"):
        for n in range(3):
            await submitted(broker, queue, f"{tenant}{n}", tenant=tenant)
    assert [id[0] for id in await order(queue, 4, skip_tenants={"a", "b", "nobody"})] == ["c"] * 3
    assert sorted(id[0] for id in await order(queue, 9, skip_tenants={"a"})) == ["b"] * 3


async def test_strict_tiers_go_before_fairness_and_deadlines(broker: Broker) -> None:
    async with broker.queue("q", QueueRules(strict_tiers=True)) as queue:
        await submitted(broker, queue, "batch", tier=2, within_ms=HOUR)
        await submitted(broker, queue, "interactive", tier=0, within_ms=3 * HOUR, tenant="b")
        await submitted(broker, queue, "first", tier=-1, within_ms=9 * HOUR)
        await submitted(broker, queue, "async", tier=1, within_ms=2 * HOUR)
        assert await order(queue) == ["first", "interactive", "async", "batch"]


async def test_without_strict_tiers_a_tier_means_nothing(broker: Broker, queue: Queue) -> None:
    await submitted(broker, queue, "late", tier=0, within_ms=2 * HOUR)
    await submitted(broker, queue, "soon", tier=5, within_ms=HOUR)
    assert await order(queue) == ["soon", "late"]


async def test_many_tenants_take_turns(broker: Broker, queue: Queue) -> None:
    for n in range(3):
        for tenant in range(40):
            await submitted(broker, queue, f"t{tenant}-{n}", tenant=f"t{tenant}", within_ms=HOUR + n)
    for n in range(3):
        assert Counter(id.split("-")[1] for id in await order(queue, 40)) == {str(n): 40}


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
    assert list(await queue.backlog(10)) == [TenantBacklog("b", 1, soon + 9), TenantBacklog("a", 2, soon + 1)]
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
