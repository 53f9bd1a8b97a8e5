"""SIGTERM and SIGINT, the same for all programs: the first asks for a drain, the second ends the process at once.

A program that drained exits with 0. The second signal has its default action, so that it ends even a process whose loop
hangs; a shell calls that 143 (SIGTERM) or 130 (SIGINT).
"""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, Final, NoReturn, TypeVar

import anyio

from runtime.tasks import first_of

log = logging.getLogger(__name__)

STOP: Final = (signal.SIGTERM, signal.SIGINT)
"""Kubernetes, systemd and `kill` send SIGTERM, a terminal sends SIGINT (Ctrl-C)."""
_LOOPS: Final = ("asyncio", "uvloop")

Result = TypeVar("Result")
Signals = AsyncIterator[signal.Signals]


def stop_signals() -> AbstractContextManager[Signals]:
    """SIGTERM and SIGINT as they come while inside; behind it they have their default action again.

    Enter it before the program says that it is ready: who reads that may send a signal at once.
    """
    return anyio.open_signal_receiver(*STOP)


async def until_signalled(signals: Signals, work: Awaitable[Result]) -> Result | None:
    """The result of `work` or what it raises; None when a signal comes first, which cancels `work`."""

    async def signalled() -> None:
        await anext(signals)

    return await first_of(signalled(), work)


def cancel_on(*numbers: signal.Signals) -> None:
    """Cancel the running task whenever one of these signals arrives, for as long as its loop runs.

    SIGINT is worth naming: a shell starts what it puts in the background with SIGINT ignored.
    """
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("call it in a task: outside there is nothing to cancel")
    for number in numbers:
        task.get_loop().add_signal_handler(number, task.cancel)


def on_sigterm(drain: Callable[[], Awaitable[None]]) -> None:
    """Run `drain` when SIGTERM arrives, then pass the signal on; a second SIGTERM cancels `drain`.

    The handler that was there before may be Python's own (uvicorn), the running loop's (aiohttp), or none: then the
    program ends by SystemExit out of the loop, so that `async with` blocks are left. RuntimeError outside the main
    thread.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(
            "signals can be handled in the main thread only: call drain_on_sigterm from there, or await "
            "handle.drain(timeout) when the program is told to stop"
        )
    loop = asyncio.get_running_loop()
    pass_on = _previous(loop)
    draining: list[asyncio.Task[None]] = []

    async def run() -> None:
        await drain()

    def received() -> None:
        if not draining:
            draining.append(loop.create_task(run(), name="drain on SIGTERM"))
            draining[0].add_done_callback(finished)
        elif not draining[0].cancel():
            pass_on()

    def finished(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("draining failed: %s", error)
        pass_on()

    loop.add_signal_handler(signal.SIGTERM, received)


def on_sigterm_in_thread(drain: Callable[[], None]) -> None:
    """Without a loop: run `drain` in a thread when SIGTERM arrives, then do what SIGTERM did before.

    A second SIGTERM does that at once; so does the first one in a process that was forked since: what is drained is
    its parent's. ValueError outside the main thread.
    """
    previous = signal.getsignal(signal.SIGTERM) or signal.SIG_DFL
    registered = os.getpid()

    def drain_and_pass_on() -> None:
        try:
            drain()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    def received(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, previous)
        if os.getpid() != registered:
            os.kill(os.getpid(), signal.SIGTERM)
            return
        threading.Thread(target=drain_and_pass_on, name="drain on SIGTERM", daemon=True).start()

    signal.signal(signal.SIGTERM, received)


def _previous(loop: asyncio.AbstractEventLoop) -> Callable[[], object]:
    handle = _loop_handler(loop)
    if handle is not None:
        return lambda: loop.call_soon(handle._run)
    previous = signal.getsignal(signal.SIGTERM)
    if previous is signal.SIG_IGN:
        return lambda: None
    if callable(previous) and str(getattr(previous, "__module__", "")).partition(".")[0] not in _LOOPS:
        return lambda: previous(signal.SIGTERM, None)
    return _end


def _loop_handler(loop: asyncio.AbstractEventLoop) -> Any:
    """What was given to `loop.add_signal_handler` before. asyncio has no public way to ask; uvloop has none at all."""
    handlers = getattr(loop, "_signal_handlers", None)
    return handlers.get(signal.SIGTERM) if isinstance(handlers, dict) else None


def _end() -> NoReturn:
    raise SystemExit(0)
