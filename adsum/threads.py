"""Runs blocking work in threads; a cancelled caller waits for its end, so that what it opened or wrote can be undone."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, TypeVarTuple

import anyio
import anyio.to_thread

from adsum.tasks import until_done

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


def _no_op() -> None: ...


async def in_thread(
    limiter: anyio.CapacityLimiter,
    function: Callable[[*Arguments], Result],
    *arguments: *Arguments,
    stop: Callable[[], object] = _no_op,
) -> Result:
    """Run the function in one of anyio's threads; `limiter` bounds how many run at once.

    A thread cannot be cancelled. When the caller is, `stop` is called to tell the function, and CancelledError is raised
    once it has returned; its result is dropped. If no thread can start, the function runs in the caller's thread: since
    Python 3.12 no thread starts during interpreter shutdown, when a worker still has to remove its record.
    """
    work: Future[Result] = Future()
    async with limiter:
        ended = asyncio.wrap_future(work)
        worker = asyncio.create_task(_run_in_worker_thread(work, partial(function, *arguments)))
        worker.add_done_callback(lambda _: work.cancel())  # it never began, if it is not done or being done
        try:
            await asyncio.wait([ended])
        except asyncio.CancelledError:
            work.cancel()
            stop()
            await _wait(ended)
            raise
        if work.cancelled() and not worker.cancelled():
            return function(*arguments)
        return ended.result()


@dataclass(frozen=True, slots=True)
class StartedThread:
    """A thread and the future of its function."""

    thread: threading.Thread
    work: "Future[None]"


def start_thread(function: Callable[[*Arguments], None], *arguments: *Arguments) -> StartedThread:
    """Run the function in a daemon thread. Raises RuntimeError if no thread can start."""
    work: Future[None] = Future()
    call = partial(function, *arguments)
    thread = threading.Thread(target=_run, args=(work, call), name="adsum work", daemon=True)
    thread.start()
    return StartedThread(thread, work)


async def wait_for_exit(started: StartedThread) -> None:
    """Wait until the thread has exited, also if the caller is cancelled meanwhile. Drops its function's error."""
    try:
        await _wait(asyncio.wrap_future(started.work))
    finally:
        started.thread.join()  # its function has returned, so this blocks for microseconds


async def _run_in_worker_thread(work: "Future[Result]", call: Callable[[], Result]) -> None:
    try:
        await anyio.to_thread.run_sync(_run, work, call, limiter=anyio.CapacityLimiter(1))
    except RuntimeError:  # no thread could start: `work` is as it was
        return


def _run(work: "Future[Result]", call: Callable[[], Result]) -> None:
    if not work.set_running_or_notify_cancel():
        return
    try:
        work.set_result(call())
    except BaseException as error:  # noqa: BLE001  # raised where the result is asked for
        work.set_exception(error)


async def _wait(work: "asyncio.Future[Result]") -> None:
    """Wait until it is done, also if the caller is cancelled meanwhile. Drops its error."""
    try:
        await until_done(work)
    finally:
        if not work.cancelled():
            work.exception()
