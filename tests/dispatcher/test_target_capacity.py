"""Three replicas, four queues each, one target whose metrics are old: it is never overrun."""

import asyncio
import random
import time
from contextlib import AsyncExitStack

from redis.asyncio import Redis

from dispatcher.gates.gate import DispatchGate, Outcome, RefusedError
from dispatcher.gates.meter import Meters
from dispatcher.redis.ledger import RedisLedger
from tests.dispatcher.gate_tools import candidate, opened
from tests.dispatcher.target_simulator import TargetSimulator

LATE = 5.0
CAPACITY = 50
BASELINE = "0.1"


async def one_queue(gate: DispatchGate, target: TargetSimulator, seed: int) -> None:
    """Sends whatever may go; what is refused waits, as the pump has it."""
    rng = random.Random(seed)

    async def send(admission: AsyncExitStack) -> None:
        async with admission, target.request():
            await asyncio.sleep(rng.uniform(0.1, 8.0))

    async with asyncio.TaskGroup() as sending:
        while True:
            async with AsyncExitStack() as stack:
                try:
                    slot = await stack.enter_async_context(gate.admit(candidate()))
                except RefusedError as refusal:
                    await refusal.changed()
                    continue
                slot.outcome = Outcome.ACCEPTED
                sending.create_task(send(stack.pop_all()))


async def test_09_readings_5_s_old_never_let_the_load_pass_the_baseline(redis_url: str) -> None:
    target = TargetSimulator(late=LATE)
    target.others = 25
    async with AsyncExitStack() as stack:
        params = {
            "url": f"{await stack.enter_async_context(target.serving())}/metrics",
            "metric": "load",
            "max_count_per_pod": CAPACITY,
            "baseline": BASELINE,
            "interval": "500ms",
            "lag": f"{LATE + 0.5}s",  # and the time from the reservation to the target
        }
        tasks = []
        for replica in range(3):
            client = await stack.enter_async_context(Redis.from_url(redis_url))
            ledger = await stack.enter_async_context(RedisLedger(client, "pool"))
            meters = await stack.enter_async_context(Meters())
            for queue in range(4):
                gate = await stack.enter_async_context(
                    opened("endpoint-scrape", params, ledger=ledger, meters=meters)
                )
                tasks.append(asyncio.create_task(one_queue(gate, target, 4 * replica + queue)))
        started = time.monotonic()
        while time.monotonic() < started + 14:
            assert target.highest <= 45
            await asyncio.sleep(0.02)
            if time.monotonic() > started + 8:
                target.others = 15  # falling load is taken up, later
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    assert target.highest > 40, "and it was used"
    assert target.served > 20
