"""`/debug/profile?seconds=5`: where the event loop's time goes, in place of Go's pprof pages.

A thread looks at the loop's stack every 10 ms. So the cost is bounded whatever the picker does: a hundred looks a second, a
fraction of a percent. A tracing profiler such as cProfile would double the time of each pick while it runs. Compiled
functions have no Python frame: their time is their caller's.
"""

import asyncio
import sys
import threading
import time
from collections import Counter
from types import FrameType
from typing import Final

import anyio.to_thread
from aiohttp import web

INTERVAL: Final = 0.01
"""Seconds between two samples."""
MOST_SECONDS: Final = 60
_DEPTH: Final = 200
_MOST_STACKS: Final = 10_000
"""Different stacks that are kept apart, so that memory is bounded."""
_SHOWN: Final = 40
_IDLE: Final = ("select (", "poll (")
"""The loop waits for the next event there."""

Stack = tuple[str, ...]


class ProfilePage:
    """The handler of the page; profiles the thread that makes it, one profile at a time."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._running = asyncio.Lock()

    async def get(self, request: web.Request) -> web.Response:
        seconds = _seconds(request.query.get("seconds", "5"))
        form = request.query.get("format", "text")
        if seconds is None or form not in ("text", "collapsed"):
            said = f"expected ?seconds=1 to {MOST_SECONDS} and, if given, format=text or collapsed\n"
            return web.Response(status=400, text=said)
        if self._running.locked():
            return web.Response(
                status=409, text="another profile is being taken; try again when it is done\n"
            )
        stop = threading.Event()
        async with self._running:
            try:
                stacks = await anyio.to_thread.run_sync(
                    sample, self._thread, seconds, stop, abandon_on_cancel=True
                )
            finally:
                stop.set()  # the client may have left
        return web.Response(text=collapsed(stacks) if form == "collapsed" else table(stacks, seconds))


def sample(thread: int, seconds: float, stop: threading.Event) -> Counter[Stack]:
    """How often each stack was seen, the outermost function first. Blocks for `seconds`, or until `stop`."""
    stacks: Counter[Stack] = Counter()
    end = time.monotonic() + seconds
    while time.monotonic() < end and not stop.wait(INTERVAL):
        frame = sys._current_frames().get(thread)
        stack = _stack(frame)
        del frame  # it would keep the variables of a request alive until the next sample
        stacks[stack if stack in stacks or len(stacks) < _MOST_STACKS else ("(others)",)] += 1
    return stacks


def collapsed(stacks: Counter[Stack]) -> str:
    """A line for each stack, `outer;inner 12`: what flamegraph.pl and speedscope read."""
    return "".join(f"{';'.join(stack)} {count}\n" for stack, count in stacks.most_common())


def table(stacks: Counter[Stack], seconds: float) -> str:
    """The functions by their own share of the samples, and with what they call."""
    total = max(stacks.total(), 1)
    own: Counter[str] = Counter()
    with_calls: Counter[str] = Counter()
    for stack, count in stacks.items():
        own[stack[-1]] += count
        for function in set(stack):
            with_calls[function] += count
    idle = sum(count for function, count in own.items() if function.startswith(_IDLE))
    head = f"{stacks.total()} samples in {seconds:g} s, {idle / total:.0%} of them idle\n\n   own   with calls   function\n"
    rows = (
        f"{count / total:6.1%} {with_calls[function] / total:12.1%}   {function}\n"
        for function, count in own.most_common(_SHOWN)
    )
    return head + "".join(rows)


def _stack(frame: FrameType | None) -> Stack:
    names: list[str] = []
    while frame is not None and len(names) < _DEPTH:
        code = frame.f_code
        # bounded: the path of a source file
        file = "/".join(code.co_filename.rsplit("/", 2)[-2:])  # as "scheduling/director.py"
        names.append(f"{code.co_name} ({file}:{code.co_firstlineno})")
        frame = frame.f_back
    return tuple(reversed(names)) or ("(ended)",)


def _seconds(text: str) -> int | None:
    if not (text.isascii() and text.isdecimal() and len(text) <= 3):
        return None
    return int(text) if 1 <= int(text) <= MOST_SECONDS else None
