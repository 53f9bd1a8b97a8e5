"""`python -m benchmarks.scraping_for_all`: what workers' pages cost each of two processes of one picker, of which one asks for all.

Without it each process would take what the dearer one takes. Nothing else happens: no request comes, and the workers' numbers change
from page to page. "in use": every page is asked for every 50 ms, as those of workers in use, 2,000 a second at most.
"""

import argparse
import asyncio
import statistics
import sys
from pathlib import Path
from typing import Final

from benchmarks.process_usage import processor_seconds

_SETTLE: Final = 4.0
_SECONDS: Final = 3.0


async def _ready(*command: str, marker: bytes = b"") -> tuple[asyncio.subprocess.Process, bytes]:
    pipe, nowhere = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *command, stdin=pipe, stdout=pipe, stderr=nowhere, limit=2**20
    )
    assert started.stdout is not None
    line = await started.stdout.readline()
    assert line.startswith(marker), line
    return started, line


def _children(pid: int) -> list[str]:
    # bounded: our own
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


async def _measure(count: int, flags: list[str], rounds: int) -> list[float]:
    """Cores of each process, the dearer one first: medians."""
    pages, line = await _ready("benchmarks.metrics_pages", str(count))
    endpoints = [f"--endpoint=127.0.0.1:{port}" for port in line.decode().split()]
    local = (
        "--host=127.0.0.1",
        "--grpc-port=0",
        "--grpc-health-port=0",
        "--metrics-port=0",
        "--secure-serving=false",
    )
    picker, _ = await _ready("epp", *local, "--processes=2", *flags, *endpoints, marker=b"ready")
    try:
        await asyncio.sleep(_SETTLE)
        pids = _children(picker.pid)
        spent = []
        for _ in range(rounds):
            before = [processor_seconds(int(pid)) for pid in pids]
            await asyncio.sleep(_SECONDS)
            after = [processor_seconds(int(pid)) for pid in pids]
            spent.append(
                sorted(((b - a) / _SECONDS for a, b in zip(before, after, strict=True)), reverse=True)
            )
        return [statistics.median(column) for column in zip(*spent, strict=True)]
    finally:
        for one in picker, pages:
            one.kill()
            await one.wait()


async def main(counts: list[int], rounds: int) -> None:
    for count in counts:
        for name, flags in (("idle", []), ("in use", ["--refresh-metrics-interval=50ms"])):
            asks, hears = await _measure(count, flags, rounds)
            print(
                f"{count} workers, {name}: {asks:.3f} cores the process that asks, {hears:.3f} the other one",
                flush=True,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scraping_for_all", description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    asyncio.run(main(given.workers, given.rounds))
