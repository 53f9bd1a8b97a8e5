"""Runs a program with few file descriptors, and opens idle connections to it."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.started import started
from tests.warm_python import WARM_PYTHON

DESCRIPTORS = 256
MANY = 400
"""Connections: more than the program may have descriptors."""
_LIMITED = """
import resource, runpy, sys
_, soft, hard, _, *sys.argv = sys.argv
resource.setrlimit(resource.RLIMIT_NOFILE, (int(soft), int(hard)))
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
LOG = 20_000
"""Bytes that the program may write to its log at most."""


@asynccontextmanager
async def few_descriptors(
    log: Path, *command: str, soft: int = DESCRIPTORS, hard: int = DESCRIPTORS
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Runs Python with `command`, which begins with `-m`, under that limit, its stderr in `log`. Killed at the end."""
    limited = (WARM_PYTHON, "-c", _LIMITED, str(soft), str(hard), *command)
    with log.open("wb") as written:
        async with started(*limited, stderr=written) as running:
            yield running


@contextlib.contextmanager
def idle_connections(address: str) -> Iterator[list[socket.socket]]:
    """Opens MANY connections to `host:port` and sends nothing."""
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as stack:
        clients = []
        for _ in range(MANY):
            with contextlib.suppress(OSError):  # who is turned away at once was there, too
                clients.append(stack.enter_context(socket.create_connection((host, int(port)), timeout=90)))
        yield clients


def soft_limit(pid: int) -> int:
    """Returns the soft limit of open files of the process."""
    for line in Path(f"/proc/{pid}/limits").read_text().splitlines():
        if line.startswith("Max open files"):
            return int(line.split()[3])
    raise AssertionError("no limit on open files")
