"""Caches what was read from a file, and reads it again when the file changes."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

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
