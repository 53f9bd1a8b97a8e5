"""Three processes that read a page's live data, or none, in turns. What Chromium draws costs the program nothing."""

import asyncio
import contextlib
import statistics
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from adsum.web.program_page import UPDATES_PATH
from benchmarks.process_usage import processor_seconds

_BROWSERS: Final = 3
_WINDOW: Final = 5.0
"""Seconds of a turn: as long as discovery lets pass between two explanations."""
_WINDOWS: Final = 12
_READER: Final = """
import socket, sys
one = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
one.sendall(f"GET {sys.argv[2]} HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n".encode())
assert one.recv(1 << 20).startswith(b"HTTP/1.1 200 ")
while one.recv(1 << 20):
    pass
"""


class PageCost(NamedTuple):
    """Shares of a core: medians of the turns without and with browsers, and of the differences between neighbours."""

    without: float
    with_browsers: float
    more: float

    def __str__(self) -> str:
        return (
            f"{self.without:.2%} of a core without a browser, {self.with_browsers:.2%} with {_BROWSERS}; "
            f"{self.more:+.2%} from turn to turn"
        )


async def page_cost(port: int, pid: int | None = None) -> PageCost:
    """Of the process that serves the page at `port`; `pid` None: this one."""
    shares: tuple[list[float], list[float]] = ([], [])
    for window in range(_WINDOWS):
        is_open = window % 2
        async with _browsers(port) if is_open else contextlib.nullcontext():
            loop = asyncio.get_running_loop()
            began, spent = loop.time(), processor_seconds(pid)
            await asyncio.sleep(_WINDOW)
            shares[is_open].append((processor_seconds(pid) - spent) / (loop.time() - began))
    without, with_ = map(statistics.median, shares)
    return PageCost(without, with_, statistics.median(b - a for a, b in zip(*shares, strict=True)))


@asynccontextmanager
async def _browsers(port: int) -> AsyncIterator[None]:
    started = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", _READER, str(port), UPDATES_PATH)
        for _ in range(_BROWSERS)
    ]
    try:
        await asyncio.sleep(1.0)
        yield
        assert all(one.returncode is None for one in started), "a browser's connection ended"
    finally:
        for one in started:
            one.kill()
            await one.wait()
        await asyncio.sleep(0.5)
