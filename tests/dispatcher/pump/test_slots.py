import asyncio

from hypothesis import given
from hypothesis import strategies as st

from dispatcher.pump.slots import Slots


async def test_as_many_as_are_free_and_at_least_one() -> None:
    slots = Slots(5)
    assert await slots.acquire(3) == 3
    assert await slots.acquire(3) == 2
    waiting = asyncio.create_task(slots.acquire(3))
    await asyncio.sleep(0)
    assert not waiting.done()
    slots.release(1)
    assert await waiting == 1
    assert slots.in_use == 5


async def test_those_that_wait_share_what_becomes_free() -> None:
    slots = Slots(9)
    await slots.acquire(9)
    waiting = [asyncio.create_task(slots.acquire(9)) for _ in range(3)]
    await asyncio.sleep(0)
    slots.release(9)
    assert await asyncio.gather(*waiting) == [3, 3, 3]


async def test_first_come_first_served() -> None:
    slots = Slots(1)
    await slots.acquire(1)
    order: list[str] = []

    async def wait(name: str) -> None:
        await slots.acquire(1)
        order.append(name)
        slots.release(1)

    waiting = [asyncio.create_task(wait(name)) for name in "abc"]
    await asyncio.sleep(0)
    slots.release(1)
    late = asyncio.create_task(wait("late"))
    await asyncio.gather(*waiting, late)
    assert order == ["a", "b", "c", "late"]
    assert slots.in_use == 0


async def test_one_that_gives_up_passes_its_turn_on() -> None:
    slots = Slots(1)
    await slots.acquire(1)
    first, second = asyncio.create_task(slots.acquire(1)), asyncio.create_task(slots.acquire(1))
    await asyncio.sleep(0)
    slots.release(1)
    first.cancel()  # its turn had come, it had not run yet
    assert await second == 1
    third = asyncio.create_task(slots.acquire(1))
    await asyncio.sleep(0)
    third.cancel()
    await asyncio.wait([first, third])
    slots.release(1)
    assert await slots.acquire(9) == 1


async def test_a_limit_that_changes() -> None:
    slots = Slots(1)
    await slots.acquire(1)
    waiting = asyncio.create_task(slots.acquire(9))
    await asyncio.sleep(0)
    slots.limit = 4
    assert await waiting == 3
    slots.limit = 1
    slots.release(3)
    again = asyncio.create_task(slots.acquire(1))
    await asyncio.sleep(0)
    assert not again.done()
    slots.release(1)
    assert await again == 1


async def test_a_limit_lowered_while_all_are_taken() -> None:
    slots = Slots(3)
    assert await slots.acquire(3) == 3
    slots.limit = 1
    waiting = asyncio.create_task(slots.acquire(1))
    await asyncio.sleep(0)
    assert not waiting.done()
    slots.release(2)
    await asyncio.sleep(0)
    assert not waiting.done(), "one is in flight, and the limit is one"
    slots.release(1)
    assert await waiting == 1
    assert slots.in_use == 1


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=30), st.integers(1, 5))
def test_never_more_than_there_are(steps: list[tuple[int, bool]], limit: int) -> None:
    async def run() -> None:
        slots = Slots(limit)
        held: list[int] = []

        async def acquire(most: int) -> None:
            held.append(await slots.acquire(most))

        tasks = []
        for most, release in steps:
            tasks.append(asyncio.create_task(acquire(most)))
            await asyncio.sleep(0)
            assert slots.in_use == sum(held) <= limit
            if release and held:
                slots.release(held.pop())
            elif release:
                tasks[0].cancel()
        while any(not task.done() for task in tasks):
            await asyncio.sleep(0)
            if held:
                slots.release(held.pop())
        await asyncio.sleep(0)
        assert slots.in_use == sum(held)
        for task in tasks:
            task.cancel()

    asyncio.run(run())
