"""Reads a configuration file within limits, and calls for a read when it may have changed."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from adsum.config.problems import ConfigError
from adsum.os_reason import os_reason
from adsum.tasks import background

POLL_INTERVAL: Final = 5.0
"""Seconds after which the file is read without an event: network file systems send none."""

_MAX_SIZE: Final = 1024 * 1024
"""Bytes; a ConfigMap holds at most 1 MiB."""

log = logging.getLogger(__name__)


def read_text(path: Path, expected: str) -> str:
    """The text of a configuration file, which is `expected`; raises ConfigError, whose text names the file."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_SIZE + 1)
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {os_reason(error)}; expected {expected}") from error
    if len(content) > _MAX_SIZE:
        raise ConfigError(str(path), f"is larger than {_MAX_SIZE} bytes, the limit of a ConfigMap")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), f"cannot be read: it is not UTF-8 text; expected {expected}") from error


def check_no_pipe(path: Path) -> None:
    """Raises ConfigError for a named pipe: to open one waits for its writer, and meanwhile the program could not end."""
    if path.is_fifo():
        raise ConfigError(str(path), "is a named pipe; expected a regular file")


class FileChanges:
    """Watches one file while `run` runs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._requested = asyncio.Event()

    def trigger(self) -> None:
        """Have the file read now. For SIGHUP."""
        self._requested.set()

    async def run(self, read: Callable[[], Awaitable[None]]) -> None:
        """Await `read` after each change of the file, and every POLL_INTERVAL, until cancelled.

        It watches the directory, not the file: editors replace the file, and the kubelet replaces the directory behind the
        symbolic link ..data of a ConfigMap (https://ahmet.im/blog/kubernetes-inotify/), which ends a watch on the file.
        """
        async with background(self._watch(), f"watch {self._path}"):
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL_INTERVAL):
                        await self._requested.wait()
                self._requested.clear()
                await read()

    async def _watch(self) -> None:
        from watchfiles import awatch  # programs that read the file once do without it

        folder = self._path.absolute().parent
        try:
            async for _ in awatch(folder, debounce=100, step=20, recursive=False):
                self._requested.set()
        except (OSError, RuntimeError) as error:  # the limit of inotify, or the folder is gone
            log.warning(
                "%s cannot be watched, so %s is read every %g s: %s", folder, self._path, POLL_INTERVAL, error
            )
