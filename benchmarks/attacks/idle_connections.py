"""More connections than a picker may have descriptors, on its metrics port; nothing is said on them."""

import asyncio
import contextlib
import shlex
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from benchmarks.attacks.stage.figures import Figures
from benchmarks.attacks.stage.probe import probe_for
from benchmarks.attacks.stage.victim import Victim

DESCRIPTORS, CLIENTS = 1024, 1_400
SECONDS = 10.0
PICKER = (
    *("epp", "--host=127.0.0.1", "--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0"),
    "--endpoint=127.0.0.1:9",
)


async def attack(figures: Figures) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        async with _limited(log) as victim:
            quiet, said = await probe_for(victim.url("/healthz"), 2.0), _size(log)
            with _idle(victim.ports["metrics"]):
                under = await probe_for(victim.url("/healthz"), SECONDS)
            figures.add("who asks for /healthz", quiet, under)
            figures.add(f"log in {SECONDS:g} s", "", f"{_size(log) - said} bytes")


def _size(log: Path) -> int:
    return log.stat().st_size


@contextlib.contextmanager
def _idle(address: str) -> Iterator[None]:
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as stack:
        for _ in range(CLIENTS):
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_connection((host, int(port)), timeout=5))
        yield


@contextlib.asynccontextmanager
async def _limited(log: Path) -> AsyncIterator[Victim]:
    command = shlex.join([sys.executable, "-m", *PICKER])
    with log.open("wb") as written:
        process = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", f"ulimit -n {DESCRIPTORS} && exec {command}"),
            stdout=asyncio.subprocess.PIPE,
            stderr=written,
        )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            line = (await process.stdout.readline()).decode()
        yield Victim(process, dict(word.split("=", 1) for word in line.split()[1:]))
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
