"""SIGTERM and SIGINT for all programs: the first signal begins a drain, the second ends the process at once.

A program that drained exits with 0. The second signal has its default action, so that it also ends a process whose loop
hangs; a shell reports 143 (SIGTERM) or 130 (SIGINT).
"""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, NoReturn, TypeVar

import anyio

from adsum.tasks import first_of

log = logging.getLogger(__name__)

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
"""Kubernetes, systemd and `kill` send SIGTERM, a terminal sends SIGINT (Ctrl-C)."""
_LOOP_MODULES: Final = ("asyncio", "uvloop")

Result = TypeVar("Result")
Signals = AsyncIterator[signal.Signals]


@contextmanager
def stop_signals() -> Iterator[Signals]:
    """Inside the block an iterator of the signals that arrive; after it they have their default action.

    Enter it before the program reports that it is ready: a supervisor may send a signal at once.
    """
    try:
        with anyio.open_signal_receiver(*STOP_SIGNALS) as signals:
            yield signals
    finally:  # for SIGINT asyncio restores Python's handler: its KeyboardInterrupt may come amid the closing of the loop
        signal.signal(signal.SIGINT, signal.SIG_DFL)


async def until_signalled(signals: Signals, work: Awaitable[Result]) -> Result | None:
    """The result of `work`, or None if a signal arrives first, which cancels `work`. Raises what `work` raises."""

    async def signalled() -> None:
        await anext(signals)

    return await first_of(signalled(), work)


def cancel_on(*numbers: signal.Signals) -> None:
    """Cancel the running task whenever one of these signals arrives, for as long as its loop runs.

    Name SIGINT too: a shell without job control starts background commands with SIGINT ignored (POSIX, "Asynchronous
    Lists"), and Python then installs no handler of its own.
    """
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("cancel_on must be called in a task: there is nothing to cancel outside")
    for number in numbers:
        task.get_loop().add_signal_handler(number, task.cancel)


def on_sigterm(drain: Callable[[], Awaitable[None]]) -> None:
    """Run `drain` when SIGTERM arrives, then call the previous handler; a second SIGTERM cancels `drain`.

    The previous handler may be one of `signal.signal` (uvicorn) or of the running loop (aiohttp). Without one, SystemExit
    ends the program, so that `async with` blocks are left. RuntimeError outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(
            "signals can be handled in the main thread only: call drain_on_sigterm from there, or await "
            "handle.drain(timeout) when the program is told to stop"
        )
    loop = asyncio.get_running_loop()
    call_previous = _previous(loop)
    draining: list[asyncio.Task[None]] = []

    async def run() -> None:
        await drain()

    def received() -> None:
        if not draining:
            draining.append(loop.create_task(run(), name="drain on SIGTERM"))
            draining[0].add_done_callback(finished)
        elif not draining[0].cancel():
            call_previous()

    def finished(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("draining failed: %s", error)
        call_previous()

    loop.add_signal_handler(signal.SIGTERM, received)


def on_sigterm_in_thread(drain: Callable[[], None]) -> None:
    """Without a loop: run `drain` in a thread when SIGTERM arrives, then call the previous handler.

    A second SIGTERM calls it at once. So does the first one in a forked child, because the parent owns what is drained.
    ValueError outside the main thread.
    """
    previous = signal.getsignal(signal.SIGTERM) or signal.SIG_DFL
    registered = os.getpid()

    def drain_and_call_previous() -> None:
        try:
            drain()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    def received(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, previous)
        if os.getpid() != registered:
            os.kill(os.getpid(), signal.SIGTERM)
            return
        threading.Thread(target=drain_and_call_previous, name="drain on SIGTERM", daemon=True).start()

    signal.signal(signal.SIGTERM, received)


def _previous(loop: asyncio.AbstractEventLoop) -> Callable[[], object]:
    handle = _loop_handler(loop)
    if handle is not None:
        return lambda: loop.call_soon(handle._run)
    previous = signal.getsignal(signal.SIGTERM)
    if previous is signal.SIG_IGN:
        return lambda: None
    if callable(previous) and str(getattr(previous, "__module__", "")).partition(".")[0] not in _LOOP_MODULES:
        return lambda: previous(signal.SIGTERM, None)
    return _exit


def _loop_handler(loop: asyncio.AbstractEventLoop) -> Any:
    """The handler that `loop.add_signal_handler` installed. asyncio keeps it in a private attribute, uvloop hides it."""
    handlers = getattr(loop, "_signal_handlers", None)
    return handlers.get(signal.SIGTERM) if isinstance(handlers, dict) else None


def _exit() -> NoReturn:
    raise SystemExit(0)
