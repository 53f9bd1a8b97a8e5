"""One part of the group: a child process that is started again when it ends, and whose lines go to our log."""

import asyncio
import ctypes
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Final

import aiohttp

from adsum.errors import AdsumError
from adsum.logs import announced, relayed
from adsum.tasks import first_of
from epp.envoy.workers import LISTED

log = logging.getLogger("serve")

_STARTS: Final = 5
"""In a row, without becoming ready: then a part that was ready before is given up."""
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
_STEADY: Final = 60.0
"""Seconds after which a part that ends has not been ending all the time."""
_POLL: Final = 0.05
_MAX_LINE: Final = 64 * 1024
_PR_SET_PDEATHSIG: Final = 1


class PartError(AdsumError):
    """A part cannot start, or does not stay; `code`: what the command ends with."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class Part:
    """A program of ours: ready when it says so on a line."""

    starts: int | None = _STARTS
    """None: a part that was ready before is started again for ever."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        self.said = ""
        """Its ready line, without the word."""
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._said_ready = asyncio.Event()
        self._last_line = ""
        self._reader: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns once it is ready; raises PartError if it ends before."""
        self._said_ready.clear()
        self._last_line = ""
        environment, descriptors = self._inherited()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                limit=_MAX_LINE,
                env=os.environ | {"PYTHONUNBUFFERED": "1", **environment},
                pass_fds=descriptors,
                start_new_session=True,  # Ctrl-C is for the supervisor, which ends its children in order
                preexec_fn=_dies_with_parent(),
            )
        except OSError as error:
            raise PartError(
                f"{self.name} cannot be started: {error.strerror}: {self._command[0]}", 1
            ) from error
        finally:
            for one in descriptors:
                os.close(one)
        if (output := self._process.stdout) is not None:
            self._reader = asyncio.create_task(self._copy_lines(output), name=f"log of {self.name}")
        await first_of(self._until_ready(), self._until_ended())
        log.info("%s is ready, process %d", self.name, self._process.pid)

    def _inherited(self) -> tuple[Mapping[str, str], Sequence[int]]:
        """More variables of the environment, and descriptors, which are closed here once it has them."""
        return {}, ()

    async def keep_running(self) -> None:
        """Start it again whenever it ends; raises PartError if it does not become ready any more."""
        pause, since = _FIRST_PAUSE, time.monotonic()
        while True:
            code = await self._ended()
            pause = _FIRST_PAUSE if time.monotonic() - since > _STEADY else pause
            pause = await self._start_again(f"{self.name} ended ({_describe(code)})", pause)
            since = time.monotonic()

    async def _start_again(self, why: str, pause: float) -> float:
        """Returns the pause before the next start."""
        for attempt in count(1):
            log.warning("%s; it starts again in %g s", why, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            try:
                await self.start()
            except PartError as error:
                if attempt == self.starts:
                    raise
                why = str(error)
            else:
                break
        return pause

    async def terminate(self, timeout: float) -> None:
        """SIGTERM, and SIGKILL after the timeout; returns once it has ended and its lines are in the log."""
        self.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(timeout):
                await self._ended()
        except TimeoutError:
            log.warning("%s still ran %g s after SIGTERM; it is killed", self.name, timeout)
            await self.kill()

    async def kill(self) -> None:
        self.send(signal.SIGKILL)
        await self._ended()

    async def _until_ready(self) -> None:
        await self._said_ready.wait()

    async def _until_ended(self) -> None:
        code = await self._ended()
        problem = f"{self.name} ended before it was ready ({_describe(code)})"
        raise PartError(f"{problem}: {self._last_line}", code if code in (1, 2) else 1)

    async def _ended(self) -> int:
        if self._process is None:
            return 0
        code = await self._process.wait()
        if self._reader is not None:
            await asyncio.wait([self._reader])
        return code

    def send(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def _copy_lines(self, output: asyncio.StreamReader) -> None:
        while True:
            try:
                line = (await output.readline()).decode("utf-8", "replace")
            except ValueError:  # longer than the limit; asyncio drops it
                continue
            if not line:
                return
            word, text = announced(line.strip())
            if word == "ready":
                self.said = text
                self._said_ready.set()
            self._last_line = text or self._last_line
            sys.stderr.write(f"{relayed(self.name, line.rstrip())}\n")


class EnvoyPart(Part):
    """Envoy: ready when its admin interface says so."""

    def __init__(self, name: str, command: Sequence[str], folder: Path) -> None:
        self._address = folder / "admin"
        """A file that Envoy writes once its admin interface listens."""
        super().__init__(name, [*command, "--admin-address-path", str(self._address)])

    async def start(self) -> None:
        self._address.unlink(missing_ok=True)  # of its last life
        await super().start()

    async def drain(self, timeout: float) -> None:
        """Accept no more connections, and let requests under way end within the timeout; then end it."""
        if not self._address.exists():  # it never listened: there is nothing to wait for
            await self.terminate(5.0)
            return
        try:
            async with asyncio.timeout(timeout):
                await self._ask("POST", "/drain_listeners")
                await self._until_idle()
        except TimeoutError:
            log.warning("requests were under way %g s after the signal; they are cut", timeout)
        except (OSError, aiohttp.ClientError, ValueError) as error:
            log.warning("envoy does not answer, so its requests are not waited for: %s", error)
        await self.terminate(5.0)

    async def has_workers(self) -> bool:
        """Whether it was told of a worker that answers. An Envoy that is told of none is ready as it is."""
        try:
            return await self._stat(f"cluster.{LISTED}.membership_healthy") != 0
        except (OSError, aiohttp.ClientError, ValueError):
            return False  # it is being started again

    async def _until_idle(self) -> None:
        while True:
            if not await self._stat("http.inference.downstream_rq_active"):
                return
            await asyncio.sleep(_POLL)

    async def _stat(self, name: str) -> int | None:
        """None: it has no such number."""
        text = await self._ask("GET", f"/stats?filter=^{name}$")
        # bounded: our own Envoy's answer to a filter that names one number
        return int(text.rpartition(":")[2]) if text else None

    async def _until_ready(self) -> None:
        while True:
            try:
                if (await self._ask("GET", "/ready")).startswith("LIVE"):
                    return
            except (OSError, aiohttp.ClientError):
                pass  # not yet
            await asyncio.sleep(_POLL)

    async def _ask(self, method: str, path: str) -> str:
        base = f"http://{self._address.read_text().strip()}"
        async with aiohttp.ClientSession() as session, session.request(method, base + path) as answer:
            return await answer.text()


def _describe(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def _dies_with_parent() -> Callable[[], None] | None:
    """A child runs this before its program: the kernel then kills it when this process has ended, however it ended."""
    if sys.platform != "linux":
        return None
    prctl, parent = ctypes.CDLL(None, use_errno=True).prctl, os.getpid()

    def before_exec() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before
            os._exit(1)

    return before_exec
