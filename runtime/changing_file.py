"""A file that is read again when it changed."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_SETTLED: Final = 2.0
"""Seconds after which a file's time of change tells two changes apart, on any file system."""


@dataclass(frozen=True, slots=True)
class _LastRead(Generic[T]):
    """`signature` None: it may change again unseen."""

    signature: tuple[int, ...] | None
    content: T | None
    problem: str | None


class ChangingFile(Generic[T]):
    """Calling it gives what `read` makes of the file. The ValueError of a `read` is raised again until the file changes.

    OSError where there is no such file. Blocking; may be called from several threads.
    """

    def __init__(self, path: Path, read: Callable[[Path], T]) -> None:
        self._path = path
        self._read = read
        self._last: _LastRead[T] = _LastRead(None, None, None)

    def __call__(self) -> T:
        found = self._path.stat()
        signature = (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev)
        last = self._last
        if last.signature != signature:
            is_settled = abs(time.time() - found.st_mtime) > _SETTLED
            last = self._last = self._read_again(signature if is_settled else None)
        if last.problem is not None:
            raise ValueError(last.problem)
        return last.content  # type: ignore[return-value]  # it was read

    def _read_again(self, signature: tuple[int, ...] | None) -> _LastRead[T]:
        try:
            return _LastRead(signature, self._read(self._path), None)
        except ValueError as error:
            return _LastRead(signature, None, str(error))
