"""Tasks with an owner: when the owner is gone, so are they. Blocking work, and the cancellation of who waits for it."""

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from adsum.tasks import BackgroundTasks, ResourceOwner, background, cancel_and_wait, first_of, until_done
from adsum.threads import in_thread, start_thread, wait_for_exit


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


class Work:
    """Runs in a thread until it is told to stop, then raises `error`."""

    def __init__(self, error: Exception | None = None) -> None:
        self.began, self.stop, self.ended = threading.Event(), threading.Event(), threading.Event()
        self._error = error

    def __call__(self) -> None:
        self.began.set()
        self.stop.wait(60)
        self.ended.set()
        if self._error is not None:
            raise self._error


@pytest.fixture
def limiter() -> anyio.CapacityLimiter:
    return anyio.CapacityLimiter(1)


async def test_results_and_errors_arrive(limiter: anyio.CapacityLimiter) -> None:
    assert await in_thread(limiter, divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await in_thread(limiter, divmod, 7, 0)


async def test_a_cancelled_caller_returns_when_the_work_has_ended(limiter: anyio.CapacityLimiter) -> None:
    work = Work()
    task = asyncio.create_task(in_thread(limiter, work, stop=work.stop.set))
    assert await asyncio.to_thread(work.began.wait, 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.ended.is_set()
    assert limiter.borrowed_tokens == 0


async def test_impatience_does_not_make_the_caller_leave_its_work(limiter: anyio.CapacityLimiter) -> None:
    work = Work(OSError("heard by nobody"))
    task = asyncio.create_task(in_thread(limiter, work))
    assert await asyncio.to_thread(work.began.wait, 60)  # work that no thread has begun is dropped at once
    for _ in range(3):
        await asyncio.sleep(0.02)
        task.cancel()
    with anyio.move_on_after(0.1):
        await asyncio.wait([task])
    assert not task.done()
    work.stop.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.ended.is_set()


async def test_a_cancelled_scope_waits_too(limiter: anyio.CapacityLimiter) -> None:
    work = Work()

    async def cancel_at_work() -> None:
        assert await asyncio.to_thread(work.began.wait, 60)
        scope.cancel()

    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as scope:
            group.start_soon(cancel_at_work)
            await in_thread(limiter, work, stop=work.stop.set)
    assert work.ended.is_set()


async def test_who_waits_for_his_turn_leaves_at_once(limiter: anyio.CapacityLimiter) -> None:
    finish, began = threading.Event(), threading.Event()
    first = asyncio.create_task(in_thread(limiter, finish.wait, 90))
    await asyncio.sleep(0)
    second = asyncio.create_task(in_thread(limiter, began.set))
    await asyncio.sleep(0.02)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    finish.set()
    assert await first
    assert not began.is_set()


async def test_outlasting_is_not_deaf_to_cancellation() -> None:
    finish = threading.Event()
    started = start_thread(finish.wait, 90)
    task = asyncio.create_task(wait_for_exit(started))
    await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.sleep(0.02)
    finish.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not started.thread.is_alive()


async def test_without_a_thread_to_be_had_the_work_is_done_nevertheless(
    limiter: anyio.CapacityLimiter,
) -> None:
    before = threading.stack_size(1 << 46)  # more than there are addresses: no thread can start
    try:
        assert await in_thread(limiter, divmod, 7, 2) == (3, 1)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            start_thread(divmod, 7, 2)
    finally:
        threading.stack_size(before)
