"""`make soak`: the demo's stage under steady load, for as long as asked (30 minutes). Workers come and go; of two pickers
that Envoy asks in turn, each is told to end and started again, eight times in all.

Prints the resident memory of the pickers once a minute, and the failures; by hand, its figures are committed.
"""

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.process_usage import resident_megabytes
from examples.demo.cluster import MODEL, DemoCluster
from examples.demo.load import LoadGenerator

_CHURN = 10.0
"""Seconds between two rounds; each starts a worker and drains the oldest."""
_PICKERS = 2
_RENEWALS = 8
"""Restarts of pickers over the whole run."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    options = parser.parse_args()
    return asyncio.run(_soak(options.minutes * 60))


async def _soak(seconds: float) -> int:
    with tempfile.TemporaryDirectory(prefix="adsum-soak-") as root:
        async with (
            DemoCluster(Path(root), pickers=_PICKERS) as cluster,
            LoadGenerator(cluster.url, MODEL) as load,
            asyncio.TaskGroup() as others,
        ):
            churning = others.create_task(_churn(cluster))
            renewing = others.create_task(_renew(cluster, seconds / (_RENEWALS + 1)))
            await _report(cluster, load, time.monotonic() + seconds)
            churning.cancel()
            await renewing
            await load.stop()
            failures = Counter(exchange.failure for exchange in load.exchanges if exchange.failure)
            print(f"{len(load.exchanges)} requests, {failures.total()} failed {dict(failures) or ''}")
            return 1 if failures else 0


async def _report(cluster: DemoCluster, load: LoadGenerator, until: float) -> None:
    started = time.monotonic()
    while (left := until - time.monotonic()) > 0:
        cluster.check_alive()
        minutes = (time.monotonic() - started) / 60
        held = ", ".join(f"{resident_megabytes(picker.pid):.1f}" for picker in cluster.pickers.values())
        print(f"{minutes:6.1f} min  pickers {held} MB  {len(load.exchanges)} requests", flush=True)
        await asyncio.sleep(min(60.0, left))


async def _churn(cluster: DemoCluster) -> None:
    """Starts a worker and drains the oldest, so that three remain."""
    number = 3
    while True:
        await asyncio.sleep(_CHURN)
        number += 1
        await cluster.add_worker(f"worker-{number}")
        oldest = next(name for name, process in cluster.workers.items() if process.alive)
        cluster.workers[oldest].send(signal.SIGTERM)
        await cluster.workers[oldest].wait()


async def _renew(cluster: DemoCluster, every: float) -> None:
    """Restarts the pickers in turn."""
    for number in range(_RENEWALS):
        await asyncio.sleep(every)
        await cluster.restart_picker(number % _PICKERS)
        print(f"            picker {number % _PICKERS + 1} was told to end, and is back", flush=True)


if __name__ == "__main__":
    sys.exit(main())
