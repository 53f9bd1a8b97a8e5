"""`make demo-batch` as a process, and what it may leave behind."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

WITHIN = 100.0
PLOT = Path("plots", "demo.svg")


@asynccontextmanager
async def demo(temporary: Path, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Runs the demo with its files below `temporary`; killed at the end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "examples.demo_batch", "--plot", str(temporary / PLOT), *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=os.environ | {"TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def ended(process: asyncio.subprocess.Process) -> tuple[int, str]:
    async with asyncio.timeout(WITHIN):
        output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


def left(temporary: Path) -> list[str]:
    """Returns the command lines of its processes that still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:  # it ended just now
            continue
        if str(temporary).encode() in command:
            found.append(command.replace(b"\0", b" ").decode())
    return found
