"""Runs asyncio tasks that have an owner: whoever starts one cancels it in the end and waits until it is done.

A failure that no code would read goes to the loop's exception handler, which logs it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Never, Self, TypeVar

import anyio

Result = TypeVar("Result")

StartTask = Callable[[Coroutine[Any, Any, Never]], None]
"""Starts a task that runs as long as its owner, who ends it: a coroutine that returns is an error of types."""


async def first_of(*awaitables: Awaitable[Result]) -> Result:
    """The result of the first that is done, or what it raised; the others are cancelled and awaited.

    If several are done at the same time, the first argument counts; errors of the others are reported.
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


async def wait_at_most(seconds: float | None, event: asyncio.Event) -> None:
    """Wait until the event is set, or the time is over; None: for as long as it takes."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def cancel_and_wait(*tasks: asyncio.Future[Any]) -> None:
    """Cancel the tasks and wait until all are done, also if the caller is cancelled meanwhile.

    Reports what a task raises after its cancellation, because no code reads that result any more. Errors of tasks that
    were done before are left to their readers.
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
    """Wait until all are done, also if the caller is cancelled meanwhile; raises its CancelledError after that."""
    cancelled: asyncio.CancelledError | None = None
    # a cancelled anyio scope cancels again in every iteration of the loop, unless it is shielded
    with anyio.CancelScope(shield=True):
        while pending := [future for future in futures if not future.done()]:
            try:
                await asyncio.wait(pending)
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        raise cancelled


@asynccontextmanager
async def background(work: Coroutine[Any, Any, object], name: str | None = None) -> AsyncIterator[None]:
    """Run `work` concurrently with the block, and cancel it at the end. Reports its failure."""
    tasks = BackgroundTasks()
    tasks.start(work, name)
    try:
        yield
    finally:
        await tasks.aclose()


class BackgroundTasks:
    """The tasks of one owner, who calls `aclose`. Forgets tasks that are done, and reports failures at once.

    It holds references, because the event loop keeps only weak ones to its tasks (asyncio.create_task).
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        """The tasks that are not done yet."""
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, Result], name: str | None = None) -> "asyncio.Task[Result]":
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    async def aclose(self) -> None:
        """Cancel all tasks and wait until they are done, also if the caller is cancelled meanwhile. Idempotent."""
        running = list(self._tasks)
        for task in running:
            task.cancel()
        await until_done(*running)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        _report_failure(task)


def _report_failure(future: asyncio.Future[Any]) -> None:
    """Call the loop's exception handler, as asyncio does when it collects the task, but at once."""
    if future.cancelled() or (error := future.exception()) is None:
        return
    name = future.get_name() if isinstance(future, asyncio.Task) else "a future"
    message = f"{name} failed in the background"
    future.get_loop().call_exception_handler({"message": message, "exception": error})


class ResourceOwner:
    """Base class of async context managers that enter other ones, and start tasks that last as long as they do.

    Subclasses enter what they own on `self._stack` in `_open`, and start tasks that never return with `_start` (others:
    `background`); leaving ends it all, last in, first out. When `_open` raises, what was entered so far is closed first.
    """

    _stack: AsyncExitStack
    tasks: list[asyncio.Task[None]]
    """Must not end before the owner is left; `wait_for_failure` says when one does."""

    async def wait_for_failure(self) -> None:
        """Wait until one of the tasks that must not end does; raises its exception, or RuntimeError if it has none."""
        await asyncio.wait(self.tasks, return_when=asyncio.FIRST_COMPLETED)
        ended = [task for task in self.tasks if task.done()]
        for task in ended:
            task.result()
        raise RuntimeError(f"{ended[0].get_name()} ended, but must last as long as {type(self).__name__}")

    def _start(self, work: Coroutine[Any, Any, Never]) -> None:
        task = asyncio.create_task(work, name=getattr(work, "__qualname__", None))
        self.tasks.append(task)
        self._stack.push_async_callback(cancel_and_wait, task)

    async def _enter(self, *parts: "ResourceOwner") -> None:
        """Own these parts, one after the other; what must not end there must not end here."""
        for part in parts:
            await self._stack.enter_async_context(part)
            self.tasks += part.tasks

    async def _open(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        self._stack, self.tasks = AsyncExitStack(), []
        try:
            await self._open()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
