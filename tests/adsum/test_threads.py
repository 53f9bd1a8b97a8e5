"""Blocking work and the cancellation of who waits for it."""

import asyncio
import threading

import anyio
import pytest

from adsum.threads import in_thread, start_thread, wait_for_exit


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
