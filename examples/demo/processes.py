"""Starts the demo's processes, waits for their ready line, terminates them."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

_READY_TIMEOUT = 90.0
_TERMINATE_TIMEOUT = 10.0


class DemoError(Exception):
    """The demo cannot continue; the text is printed as it is."""


class DemoProcess:
    """One child process. Standard output is read for the ready line; standard error goes to a log file."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.ready: dict[str, str] = {}
        self._process = process
        self._log = log
        self._reader: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, name: str, command: Sequence[str], logs: Path, *, prints_ready: bool = True) -> Self:
        """Start it in a session of its own. `prints_ready` False: its standard output goes to the log too."""
        log = logs / f"{name}.log"
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE
                if prints_ready
                else errors,  # a pipe that nobody reads fills up
                stderr=errors,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
                start_new_session=True,  # Ctrl-C is for the demo, which ends its children in order
            )
        return cls(name, process, log)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def wait_ready(self) -> dict[str, str]:
        """The pairs of the line `ready key=value ...`. Raises DemoError, with the end of the log, if none comes."""
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(_READY_TIMEOUT):
                while line := (await self._process.stdout.readline()).decode():
                    if line.startswith("ready"):
                        self.ready = dict(word.split("=", 1) for word in line.split()[1:])
                        self._reader = asyncio.create_task(self._discard(self._process.stdout))
                        return self.ready
        except TimeoutError:
            raise DemoError(
                f"{self.name} is not ready after {_READY_TIMEOUT:g} s:\n{self.log_tail()}"
            ) from None
        await self._process.wait()
        raise self.exit_error()

    def exit_error(self) -> DemoError:
        """The error for a process that exited by itself."""
        return DemoError(f"{self.name} ended with code {self._process.returncode}:\n{self.log_tail()}")

    def log_tail(self) -> str:
        """The last twelve lines of its log."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-12:])

    def send(self, number: signal.Signals) -> None:
        if self.alive:
            self._process.send_signal(number)

    async def wait(self) -> int:
        return await self._process.wait()

    async def terminate(self) -> None:
        """Send SIGTERM, and SIGKILL to a process that still runs after 10 s; waits for its end."""
        self.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(_TERMINATE_TIMEOUT):
                await self._process.wait()
        except TimeoutError:
            self.send(signal.SIGKILL)
            await self._process.wait()
        if self._reader is not None:
            await self._reader

    @staticmethod
    async def _discard(output: asyncio.StreamReader) -> None:
        while await output.read(65536):
            pass


def python(module: str, *arguments: str) -> list[str]:
    """The command line of `python -m module`."""
    return [sys.executable, "-m", module, *arguments]
