"""Tasks with an owner: who starts one cancels it in the end, and waits until it is over.

A failure that nobody else would read goes to the loop's exception handler, which logs it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio

Result = TypeVar("Result")


async def first_of(*awaitables: Awaitable[Result]) -> Result:
    """The result of the first that is over, or what it raised; the others are cancelled and waited for.

    Of several that are over at the same time, the first in the order given counts; what another one of them raised is
    reported.
    """
    tasks = [asyncio.ensure_future(one) for one in awaitables]
    first = None
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        first = next(task for task in tasks if task.done())
        return first.result()
    finally:
        for task in tasks:
            if task.done() and task is not first:
                _report_failure(task)
        await cancel_and_wait(*tasks)


async def cancel_and_wait(*tasks: asyncio.Future[Any]) -> None:
    """Cancel them and wait until all are over, as `until_done` does.

    What one raises while it ends is reported: its owner leaves, and nobody else would hear of it. What a task raised
    that was over before is for whoever reads its result.
    """
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    try:
        await until_done(*running)
    finally:
        for task in running:
            _report_failure(task)


async def until_done(*futures: asyncio.Future[Any]) -> None:
    """Wait until all are done, whoever cancels the caller meanwhile; its CancelledError is raised after that."""
    cancelled: asyncio.CancelledError | None = None
    # without the shield anyio would cancel again at every turn of the loop
    with anyio.CancelScope(shield=True):
        while left := [future for future in futures if not future.done()]:
            try:
                await asyncio.wait(left)
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        raise cancelled


@asynccontextmanager
async def background(work: Coroutine[Any, Any, object], name: str | None = None) -> AsyncIterator[None]:
    """Run `work` beside the block, which cancels it in the end; if it fails, that is reported."""
    tasks = BackgroundTasks()
    tasks.start(work, name)
    try:
        yield
    finally:
        await tasks.aclose()


class BackgroundTasks:
    """The tasks of one owner, who calls `aclose`. One that is over is forgotten; if it failed, that is reported at once."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, object], name: str | None = None) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._over)

    async def aclose(self) -> None:
        """Cancel them and wait until all are over, as `until_done` does. Idempotent."""
        running = list(self._tasks)
        for task in running:
            task.cancel()
        await until_done(*running)

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        _report_failure(task)


def _report_failure(future: asyncio.Future[Any]) -> None:
    """To the loop's exception handler, as asyncio does later: it logs the error, and a test fails by it."""
    if future.cancelled() or (error := future.exception()) is None:
        return
    name = future.get_name() if isinstance(future, asyncio.Task) else "a future"
    message = f"{name} failed in the background"
    future.get_loop().call_exception_handler({"message": message, "exception": error})
