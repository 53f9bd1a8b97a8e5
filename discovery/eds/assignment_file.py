"""Writes the endpoints of a cluster to the file that Envoy watches: whole or not at all, and only if they changed."""

import os
from contextlib import suppress
from pathlib import Path

from adsum.errors import AdsumError
from discovery.eds.assignment import Assignment, file_bytes

_TEMPORARY = ".tmp"


class AssignmentFileError(AdsumError):
    """The file cannot be written now; the one that is there stays."""


class AssignmentFile:
    """The file that Envoy watches: whole at any moment, and replaced only when its endpoints change."""

    def __init__(self, path: Path, cluster: str) -> None:
        self.path = path
        self._cluster = cluster

    def publish(self, assignment: Assignment) -> None:
        """Replace the file; raises AssignmentFileError. Envoy reads it again when one is moved to its place (path_config_source)."""
        text = file_bytes(self._cluster, assignment.endpoints)
        with suppress(OSError):
            if self.path.read_bytes() == text:
                return
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}{_TEMPORARY}")
        try:
            temporary.unlink(missing_ok=True)  # of a process with this id that was killed
            # not through a link that others put there; 0666 without the umask: Envoy may be another user
            with temporary.open("xb") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())  # after a power cut the old file or the new one, never an empty one
            temporary.replace(self.path)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise AssignmentFileError(
                f"cannot write {self.path}: {error.strerror}; expected a directory that this user can write to"
            ) from error
