"""Pickers as processes of a test, which a signal can end, stop and continue, and which begin again on the same ports."""

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp

from benchmarks.ports import free_ports
from tests.warm_python import WARM_PYTHON


class PickerProgram:
    """`address` serves ext_proc, in plain text; `metrics`: the URL of its page."""

    def __init__(self, ports: Sequence[int], workers: Sequence[int], flags: Sequence[str] = ()) -> None:
        self.address = f"127.0.0.1:{ports[0]}"
        self.metrics = f"http://127.0.0.1:{ports[2]}/metrics"
        names = ("grpc-port", "grpc-health-port", "metrics-port")
        self._flags = ["--host=127.0.0.1", "--secure-serving=false"]
        self._flags += [f"--{name}={port}" for name, port in zip(names, ports, strict=True)]
        self._flags += [f"--endpoint=127.0.0.1:{port}" for port in workers]
        self._flags += flags
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        pipe, nowhere = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        command = [WARM_PYTHON, "-m", "epp", *self._flags]
        self.process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=nowhere)
        assert self.process.stdout is not None
        assert (await self.process.stdout.readline()).startswith(b"ready")

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def ended(self) -> None:
        assert self.process is not None
        await self.process.wait()

    async def stop(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            await self.process.wait()

    async def page(self, name: str) -> Any:
        """`status`, for example."""
        url = self.metrics.removesuffix("metrics") + name
        async with aiohttp.ClientSession() as client, client.get(url) as answer:
            return await answer.json()

    async def in_flight(self) -> float:
        """At all workers together."""
        async with aiohttp.ClientSession() as client, client.get(self.metrics) as answer:
            page = await answer.text()
        found = re.findall(r"(?m)^llm_d_epp_per_endpoint_inflight_requests\{.*\} (\S+)$", page)
        return sum(map(float, found))


@asynccontextmanager
async def picker_programs(
    count: int, workers: Sequence[int], flags: Sequence[str] = ()
) -> AsyncIterator[list[PickerProgram]]:
    """`workers`: their ports on 127.0.0.1."""
    async with AsyncExitStack() as stack:
        ports = free_ports(3 * count)
        found = [PickerProgram(ports[3 * at : 3 * at + 3], workers, flags) for at in range(count)]
        for one in found:
            stack.push_async_callback(one.stop)
            await one.start()
        yield found
