"""Reads files that change: a cached result until they do, configuration files within limits, and a call when one may have."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, Never, TypeVar

from adsum.config.problems import ConfigError
from adsum.errors import os_reason
from adsum.tasks import background, wait_at_most

T = TypeVar("T")

_SETTLE_SECONDS: Final = 2.0
"""Seconds. A younger mtime may hide a second change: FAT counts in steps of 2 s. The file is then read each time."""


@dataclass(frozen=True, slots=True)
class _CachedRead(Generic[T]):
    """`signature` None: the file may change without another signature, so this result is not reused."""

    signature: tuple[int, ...] | None
    content: T | None
    problem: str | None


class ChangingFile(Generic[T]):
    """Call it for the result of `read`. A ValueError that `read` raised is raised again until the file changes.

    Raises OSError if the file cannot be read. Blocking; thread-safe.
    """

    def __init__(self, path: Path, read: Callable[[Path], T]) -> None:
        self._path = path
        self._read = read
        self._cached: _CachedRead[T] = _CachedRead(None, None, None)

    def __call__(self) -> T:
        found = self._path.stat()
        signature = (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev)
        cached = self._cached
        if cached.signature != signature:
            is_settled = abs(time.time() - found.st_mtime) > _SETTLE_SECONDS
            cached = self._cached = self._read_now(signature if is_settled else None)
        if cached.problem is not None:
            raise ValueError(cached.problem)
        return cached.content  # type: ignore[return-value]  # it was read

    def _read_now(self, signature: tuple[int, ...] | None) -> _CachedRead[T]:
        try:
            return _CachedRead(signature, self._read(self._path), None)
        except ValueError as error:
            return _CachedRead(signature, None, str(error))


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

    async def run(self, read: Callable[[], Awaitable[None]]) -> Never:
        """Await `read` after each change of the file, and every POLL_INTERVAL, until cancelled.

        It watches the directory, not the file: editors replace the file, and the kubelet replaces the directory behind the
        symbolic link ..data of a ConfigMap (https://ahmet.im/blog/kubernetes-inotify/), which ends a watch on the file.
        """
        async with background(self._watch(), f"watch {self._path}"):
            while True:
                await wait_at_most(POLL_INTERVAL, self._requested)
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
