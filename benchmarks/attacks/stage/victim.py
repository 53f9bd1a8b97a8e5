"""A program of ours in a process of its own, to be attacked."""

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
    """`ports`: what its ready line says, as `grpc`, `health`, `metrics` of a picker: each a host with its port."""

    process: asyncio.subprocess.Process
    ports: dict[str, str]

    @property
    def megabytes(self) -> float:
        """The resident set."""
        return resident_megabytes(self.process.pid)

    @property
    def cpu(self) -> float:
        """Seconds of processor time, so far."""
        return processor_seconds(self.process.pid)

    def url(self, path: str, port: str = "metrics") -> str:
        """A page of it."""
        return f"http://{self.ports[port]}{path}"

    async def page(self, path: str, *, timeout: float = 10.0) -> str:
        """The text of a page, as it is within `timeout` seconds; raises TimeoutError."""
        limit = aiohttp.ClientTimeout(total=timeout)
        async with aiohttp.ClientSession(timeout=limit) as client, client.get(self.url(path)) as answer:
            return await answer.text()


@contextlib.asynccontextmanager
async def picker(workers: Sequence[int], *options: str) -> AsyncIterator[Victim]:
    """A picker of the workers on those ports of 127.0.0.1; `options`: more of its flags. Killed in the end."""
    ports = ("--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0")
    endpoints = (f"--endpoint=127.0.0.1:{port}" for port in workers)
    command = ("epp", "--host=127.0.0.1", "--secure-serving=false", *ports, *endpoints, *options)
    async with started(*command) as victim:
        yield victim


@contextlib.asynccontextmanager
async def started(module: str, *arguments: str) -> AsyncIterator[Victim]:
    """`python -m module arguments`, as soon as it has printed its ready line; raises TimeoutError, AssertionError."""
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
