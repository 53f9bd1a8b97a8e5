"""`make soak`: the demo's stage under steady load while workers come and go, for as long as asked (30 minutes).

Prints the resident memory of the picker once a minute, and the failures; by hand, its figures are committed.
"""

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.processor import resident_megabytes
from examples.demo.load import Load
from examples.demo.stage import MODEL, Stage, free_port

_CHURN = 10.0
"""Seconds between one worker joining and an older one draining."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    options = parser.parse_args()
    return asyncio.run(_soak(options.minutes * 60))


async def _soak(seconds: float) -> int:
    with tempfile.TemporaryDirectory(prefix="adsum-soak-") as root:
        async with Stage(Path(root), free_port()) as stage, Load(stage.url, MODEL) as load:
            churning = asyncio.create_task(_churn(stage))
            try:
                await _report(stage, load, time.monotonic() + seconds)
            finally:
                churning.cancel()
                await asyncio.wait([churning])
            await load.stop()
            failures = [exchange.failure for exchange in load.exchanges if exchange.failure]
            print(
                f"{len(load.exchanges)} requests, {len(failures)} failed{f': {failures[0]}' if failures else ''}"
            )
            return 1 if failures else 0


async def _report(stage: Stage, load: Load, until: float) -> None:
    started = time.monotonic()
    while (left := until - time.monotonic()) > 0:
        stage.check_alive()
        if stage.picker is not None:
            minutes = (time.monotonic() - started) / 60
            print(
                f"{minutes:6.1f} min  picker {resident_megabytes(stage.picker.pid):6.1f} MB  {len(load.exchanges)} requests"
            )
        await asyncio.sleep(min(60.0, left))


async def _churn(stage: Stage) -> None:
    """One worker joins, the oldest drains; three remain."""
    number = 3
    while True:
        await asyncio.sleep(_CHURN)
        number += 1
        await stage.add_worker(f"worker-{number}")
        oldest = next(name for name, process in stage.workers.items() if process.alive)
        stage.workers[oldest].send(signal.SIGTERM)
        await stage.workers[oldest].wait()


if __name__ == "__main__":
    sys.exit(main())
