"""Processes that tests start, what they print, and the line by which a program says that it is ready."""

import asyncio
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def started(*command: str, **options: Any) -> AsyncIterator[Process]:
    """A process whose output the test reads; killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(*command, **{"stdout": PIPE} | options)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def next_line(process: Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(90):
        return (await process.stdout.readline()).decode()


async def ready(process: Process) -> dict[str, str]:
    """What its ready line says: `http` is the address of its pages, for example."""
    line = await next_line(process)
    assert line.startswith("ready "), line
    return dict(pair.split("=", 1) for pair in line.split()[1:])
