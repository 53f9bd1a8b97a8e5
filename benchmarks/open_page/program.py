"""Starts a program of ours, and reads its ready line."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple


class Program(NamedTuple):
    """`words`: of its ready line, such as `http`."""

    pid: int
    words: dict[str, str]

    @property
    def port(self) -> int:
        """Where its page is served."""
        return int(self.words["http"].rpartition(":")[2])


@asynccontextmanager
async def program(*arguments: str) -> AsyncIterator[Program]:
    """`python -m ARGUMENTS`, killed in the end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        first, *words = (await process.stdout.readline()).decode().split() or [""]
        assert first == "ready", arguments
        yield Program(process.pid, dict(word.split("=", 1) for word in words))
    finally:
        process.kill()
        await process.communicate()
