"""Runs the programs that a release is made with."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


class ReleaseError(Exception):
    """A program failed; the text has its last lines."""


def run(
    command: Sequence[str], *, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> str:
    """Returns what it printed. Raises ReleaseError."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | (environment or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        last = "\n".join(done.stdout.splitlines()[-20:])
        raise ReleaseError(f"{' '.join(command)} ended with {done.returncode}; it said:\n{last}")
    return done.stdout
