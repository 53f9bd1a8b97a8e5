"""Tasks with an owner: when the owner is gone, so are they, and what they raised was heard."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from adsum.tasks import BackgroundTasks, ResourceOwner, background, cancel_and_wait, first_of, until_done


@pytest.fixture
async def reported() -> AsyncIterator[list[str]]:
    """What the loop's exception handler is told: the message, and what was raised."""
    told: list[str] = []

    def tell(_: object, context: dict[str, Any]) -> None:
        told.append(f"{context['message']}: {context['exception']}")

    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(tell)
    yield told
    loop.set_exception_handler(before)


async def _fails(error: Exception) -> str:
    raise error


async def _says(word: str) -> str:
    return word


class Sleeper:
    """Sleeps until it is cancelled, and takes a few turns of the loop to end."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.fault = fault
        self.began = asyncio.Event()
        self.ended = False

    async def run(self) -> str:
        try:
            self.began.set()
            await asyncio.sleep(3600)
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            self.ended = True
            if self.fault is not None:
                raise self.fault
        return "slept"


def _others() -> set[asyncio.Task[object]]:
    return {task for task in asyncio.all_tasks() if "Sleeper" in repr(task.get_coro())}


async def test_the_first_counts_and_the_others_are_gone() -> None:
    sleeper = Sleeper()
    assert await first_of(sleeper.run(), _says("awake")) == "awake"
    assert sleeper.ended
    assert not _others()


async def test_of_two_that_are_over_at_once_the_first_given_counts() -> None:
    assert await first_of(_says("a"), _says("b")) == "a"
    assert await first_of(_says("b"), _says("a")) == "b"


async def test_what_the_first_raises_is_raised() -> None:
    sleeper = Sleeper()
    with pytest.raises(ValueError, match="a fault"):
        await first_of(sleeper.run(), _fails(ValueError("a fault")))
    assert sleeper.ended


async def test_what_a_second_one_raises_is_reported(reported: list[str]) -> None:
    assert await first_of(_says("a"), _fails(ValueError("too late"))) == "a"
    (told,) = reported
    assert told.endswith(" failed in the background: too late")


async def test_a_cancelled_caller_waits_for_all() -> None:
    sleepers = [Sleeper(), Sleeper()]
    caller = asyncio.create_task(first_of(*(sleeper.run() for sleeper in sleepers)))
    for sleeper in sleepers:
        await sleeper.began.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert all(sleeper.ended for sleeper in sleepers)


async def test_a_deadline_of_anyio_waits_for_all_too() -> None:
    """anyio cancels again and again in a scope that is over, also while the others are waited for."""
    sleeper = Sleeper()
    with anyio.move_on_after(0.01) as scope:
        await first_of(sleeper.run(), asyncio.Event().wait())
    assert scope.cancelled_caught
    assert sleeper.ended


async def test_ending_waits_whoever_cancels() -> None:
    sleeper = Sleeper()
    task = asyncio.create_task(sleeper.run())
    await sleeper.began.wait()
    ending = asyncio.create_task(cancel_and_wait(task))
    await asyncio.sleep(0)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert sleeper.ended
    assert task.cancelled()


async def test_what_a_task_raises_while_it_ends_is_reported(reported: list[str]) -> None:
    sleeper = Sleeper(OSError("the disk is full"))
    task = asyncio.create_task(sleeper.run(), name="a writer")
    await sleeper.began.wait()
    await cancel_and_wait(task)
    assert reported == ["a writer failed in the background: the disk is full"]


async def test_what_a_task_raised_before_is_left_to_its_reader(reported: list[str]) -> None:
    task = asyncio.create_task(_fails(ValueError("a fault")))
    await asyncio.wait([task])
    await cancel_and_wait(task)
    assert not reported
    with pytest.raises(ValueError, match="a fault"):
        task.result()


async def test_nothing_to_end_is_no_fault() -> None:
    await cancel_and_wait()
    await until_done()
    await BackgroundTasks().aclose()


async def test_background_work_ends_with_its_block() -> None:
    sleeper = Sleeper()
    async with background(sleeper.run()):
        await sleeper.began.wait()
    assert sleeper.ended


@pytest.mark.parametrize("at_the_end", [False, True])
async def test_background_work_that_fails_is_reported_once(reported: list[str], at_the_end: bool) -> None:
    sleeper = Sleeper(ValueError("a fault"))
    work = sleeper.run() if at_the_end else _fails(ValueError("a fault"))
    async with background(work, "a feed"):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert reported == ["a feed failed in the background: a fault"]


async def test_the_tasks_of_one_owner_end_together_and_again() -> None:
    sleepers = [Sleeper() for _ in range(3)]
    tasks = BackgroundTasks()
    for sleeper in sleepers:
        tasks.start(sleeper.run())
        await sleeper.began.wait()
    await tasks.aclose()
    assert all(sleeper.ended for sleeper in sleepers)
    await tasks.aclose()
    assert not _others()


class Owner(ResourceOwner):
    def __init__(self, *resources: str) -> None:
        self._resources = resources
        self.log: list[str] = []

    async def _open(self) -> None:
        for name in self._resources:
            await self._stack.enter_async_context(self._resource(name))

    @asynccontextmanager
    async def _resource(self, name: str) -> AsyncIterator[None]:
        if name == "broken":
            raise OSError(name)
        self.log.append(f"open {name}")
        yield
        self.log.append(f"close {name}")


async def test_resources_close_in_reverse_order() -> None:
    async with Owner("a", "b") as owner:
        assert owner.log == ["open a", "open b"]
    assert owner.log[2:] == ["close b", "close a"]


async def test_a_failed_open_closes_what_was_open() -> None:
    owner = Owner("a", "broken", "b")
    with pytest.raises(OSError, match="broken"):
        await owner.__aenter__()
    assert owner.log == ["open a", "close a"]


class Following(ResourceOwner):
    def __init__(self, *works: Coroutine[Any, Any, None]) -> None:
        self._works = works

    async def _open(self) -> None:
        for work in self._works:
            self._start(work)


async def test_an_owner_learns_which_of_its_tasks_died_and_ends_the_others() -> None:
    sleeper = Sleeper()
    async with Following(sleeper.run(), _fails(ValueError("a fault"))) as owner:
        with pytest.raises(ValueError, match="a fault"):
            await owner.wait_for_failure()
    assert sleeper.ended


async def test_a_task_that_ends_before_its_owner_is_a_fault() -> None:
    async with Following(asyncio.sleep(0)) as owner:
        with pytest.raises(RuntimeError, match=r"sleep ended, but must last as long as Following"):
            await owner.wait_for_failure()
