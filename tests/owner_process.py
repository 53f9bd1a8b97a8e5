"""A process that owns one instance by its lock and its record only, for tests that kill it."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.warm_python import WARM_PYTHON

OWNER = """
import asyncio, os, sys
from pathlib import Path
from discovery import Instance
from registry.filesystem.membership import FilesystemMembership

async def main():
    root, instance_id, fork = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "fork"
    await FilesystemMembership(root).join(Instance(instance_id, "prod", "decode", "127.0.0.1", 80, "one"))
    if fork and os.fork() == 0:
        print("child", os.getpid(), flush=True)
        await asyncio.sleep(600)
        os._exit(0)
    print("joined", os.getpid(), flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@contextmanager
def owner(root: Path, instance_id: str, how: str = "alone") -> Iterator[subprocess.Popen[str]]:
    """Yields the process once it owns the instance; kills it at the end."""
    process = subprocess.Popen(
        [WARM_PYTHON, "-c", OWNER, str(root), instance_id, how],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        while "joined" not in (line := process.stdout.readline()):
            assert line, "the owner died"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
