"""Starts the program under attack in its own process."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import aiohttp

from benchmarks.process_usage import processor_seconds, resident_megabytes

_DEADLINE = 30.0


@dataclass(frozen=True, slots=True)
class Victim:
    """`ports`: host and port by name, from the ready line; a picker has `grpc`, `health` and `metrics`."""

    process: asyncio.subprocess.Process
    ports: dict[str, str]

    @property
    def megabytes(self) -> float:
        return resident_megabytes(self.process.pid)

    @property
    def cpu(self) -> float:
        """Seconds of processor time since its start."""
        return processor_seconds(self.process.pid)

    def url(self, path: str, port: str = "metrics") -> str:
        return f"http://{self.ports[port]}{path}"

    async def page(self, path: str, *, timeout: float = 10.0) -> str:
        """Returns the text of a page; raises TimeoutError after `timeout` seconds."""
        limit = aiohttp.ClientTimeout(total=timeout)
        async with aiohttp.ClientSession(timeout=limit) as client, client.get(self.url(path)) as answer:
            return await answer.text()


@contextlib.asynccontextmanager
async def picker(workers: Sequence[int], *options: str) -> AsyncIterator[Victim]:
    """A picker over the workers on those ports of 127.0.0.1; `options`: more of its flags. Killed at the end."""
    ports = ("--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0")
    endpoints = (f"--endpoint=127.0.0.1:{port}" for port in workers)
    command = ("epp", "--host=127.0.0.1", "--secure-serving=false", *ports, *endpoints, *options)
    async with started(*command) as victim:
        yield victim


@contextlib.asynccontextmanager
async def started(module: str, *arguments: str) -> AsyncIterator[Victim]:
    """Runs `python -m module arguments` and waits for its ready line; raises TimeoutError, AssertionError."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(_DEADLINE):
            line = (await process.stdout.readline()).decode()
        assert line.startswith("ready "), f"{module} did not start; it said {line!r}"
        yield Victim(process, dict(word.split("=", 1) for word in line.split()[1:]))
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
