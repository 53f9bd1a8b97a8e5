"""Starts `python -m dispatcher`, and the same with a planted fault, as processes."""

import asyncio
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from dispatcher.__main__ import main
from tests.in_process import run_here
from tests.warm_python import WARM_PYTHON

READY_WITHIN = 90.0
ROOT = Path(__file__).parents[2]


class Running:
    """One process; `http`: where its pages are."""

    def __init__(self, process: asyncio.subprocess.Process, http: str) -> None:
        self.process = process
        self.http = http

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, number: signal.Signals) -> None:
        if self.process.returncode is None:
            self.process.send_signal(number)

    async def ended(self) -> int:
        """Its exit code; fails when it does not end."""
        async with asyncio.timeout(READY_WITHIN):
            return await self.process.wait()


@asynccontextmanager
async def dispatcher(config: Path, *arguments: str, module: str = "dispatcher") -> AsyncIterator[Running]:
    """Entered: it said ready. Killed in the end if it still runs."""
    command = [WARM_PYTHON, "-m", module, "--config", str(config), *arguments]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, cwd=ROOT)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(READY_WITHIN):
            line = (await process.stdout.readline()).decode().split()
        assert line[:1] == ["ready"], line
        yield Running(process, f"http://{dict(pair.split('=') for pair in line[1:])['http']}")
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def page(url: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as client, client.get(url) as answer:
        return answer.status, await answer.text()


def sample(metrics: str, name: str, **labels: str) -> float:
    """The one sample of that name with these labels."""
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    lines = re.findall(rf"^{name}(\{{.*\}})? (\S+)$", metrics, re.MULTILINE)
    [value] = [float(value) for shown, value in lines if all(part in shown for part in wanted)]
    return value


async def command(*arguments: str, within: float = 90.0) -> tuple[int, str, str]:
    """`python -m dispatcher ARGUMENTS`: exit code, what it printed, what it complained of."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        WARM_PYTHON, "-m", "dispatcher", *arguments, stdout=pipe, stderr=pipe, cwd=ROOT
    )
    try:
        async with asyncio.timeout(within):
            out, error = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), error.decode()


async def answered(*arguments: str) -> tuple[int, str, str]:
    """As `command`, in a thread of this process: without the second that an interpreter and its imports take."""
    ended = await asyncio.to_thread(run_here, main, *arguments)
    return ended.returncode, ended.stdout, ended.stderr
