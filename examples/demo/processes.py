"""Processes of the demo: started, known to be ready or dead, always ended."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

_PATIENCE = 30.0
_FAREWELL = 10.0


class DemoError(Exception):
    """The demo cannot go on; the text is for the person who started it."""


class DemoProcess:
    """One child process. What it says on standard output is read for its ready line, the rest goes to a log file."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.ready: dict[str, str] = {}
        self._process = process
        self._log = log
        self._reader: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, name: str, command: Sequence[str], logs: Path, *, says_ready: bool = True) -> Self:
        """Start it; DemoError if there is no such program. `says_ready` False: what it prints goes to its log."""
        log = logs / f"{name}.log"
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE if says_ready else errors,  # a pipe that nobody reads fills up
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
        """The words of the line `ready key=value ...`. DemoError with its last words if it dies or never says so."""
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(_PATIENCE):
                while line := (await self._process.stdout.readline()).decode():
                    if line.startswith("ready"):
                        self.ready = dict(word.split("=", 1) for word in line.split()[1:])
                        self._reader = asyncio.create_task(self._discard(self._process.stdout))
                        return self.ready
        except TimeoutError:
            raise DemoError(f"{self.name} is not ready after {_PATIENCE:g} s:\n{self.last_words()}") from None
        await self._process.wait()
        raise self.died()

    def died(self) -> DemoError:
        """What to say when it ended by itself."""
        return DemoError(f"{self.name} ended with code {self._process.returncode}:\n{self.last_words()}")

    def last_words(self) -> str:
        """The end of its log."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-12:])

    def send(self, number: signal.Signals) -> None:
        if self.alive:
            self._process.send_signal(number)

    async def wait(self) -> int:
        """Its exit code."""
        return await self._process.wait()

    async def end(self) -> None:
        """SIGTERM, and SIGKILL if that is not heard within 10 s."""
        self.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(_FAREWELL):
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
    """The command that runs a module of ours."""
    return [sys.executable, "-m", module, *arguments]
