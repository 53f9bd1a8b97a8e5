"""Blocking work in threads: a cancelled caller waits for its end, so that what it opened or wrote can be undone."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, TypeVarTuple

import anyio
import anyio.to_thread

from runtime.tasks import until_done

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


def _nothing() -> None: ...


async def in_thread(
    limiter: anyio.CapacityLimiter,
    function: Callable[[*Arguments], Result],
    *arguments: *Arguments,
    stop: Callable[[], object] = _nothing,
) -> Result:
    """The function's result, from one of anyio's threads; `limiter` bounds how many work at once.

    A thread cannot be cancelled: when the caller is, `stop` is called, by which the function may hear of it, and
    CancelledError is raised once the function has returned. Its result is dropped then. Where no thread can start
    the caller's own does the work: so a worker can still leave while the interpreter ends, when there are no new
    threads from Python 3.12 on.
    """
    work: Future[Result] = Future()
    async with limiter:
        ended = asyncio.wrap_future(work)
        carrier = asyncio.create_task(_carry(work, partial(function, *arguments)))
        carrier.add_done_callback(lambda _: work.cancel())  # it never began, if it is not done or being done
        try:
            await asyncio.wait([ended])
        except asyncio.CancelledError:
            work.cancel()
            stop()
            await _ended(ended)
            raise
        if work.cancelled() and not carrier.cancelled():
            return function(*arguments)
        return ended.result()


@dataclass(frozen=True, slots=True)
class Started:
    """What `start_thread` began: the thread, and what becomes of its function."""

    thread: threading.Thread
    work: "Future[None]"


def start_thread(function: Callable[[*Arguments], None], *arguments: *Arguments) -> Started:
    """Run the function in a daemon thread of its own. RuntimeError when the system gives none."""
    work: Future[None] = Future()
    call = partial(function, *arguments)
    thread = threading.Thread(target=_perform, args=(work, call), name="adsum work", daemon=True)
    thread.start()
    return Started(thread, work)


async def outlast(started: Started) -> None:
    """Wait until the thread is gone, whoever cancels meanwhile; its function's error, if any, is dropped."""
    try:
        await _ended(asyncio.wrap_future(started.work))
    finally:
        started.thread.join()  # its function has returned: what is left of it are microseconds


async def _carry(work: "Future[Result]", call: Callable[[], Result]) -> None:
    try:
        await anyio.to_thread.run_sync(_perform, work, call, limiter=anyio.CapacityLimiter(1))
    except RuntimeError:  # no thread could start: `work` is as it was
        return


def _perform(work: "Future[Result]", call: Callable[[], Result]) -> None:
    if not work.set_running_or_notify_cancel():
        return
    try:
        work.set_result(call())
    except BaseException as error:  # noqa: BLE001  # raised where the result is asked for
        work.set_exception(error)


async def _ended(work: "asyncio.Future[Result]") -> None:
    """Wait, whoever cancels meanwhile; what it raised is dropped."""
    try:
        await until_done(work)
    finally:
        if not work.cancelled():
            work.exception()
