"""SIGTERM: drain first, then what SIGTERM did before. A web server that owns the signal gets it when we are done."""

import asyncio
import logging
import signal
import threading
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

log = logging.getLogger(__name__)

_LOOPS = ("asyncio", "uvloop")


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
