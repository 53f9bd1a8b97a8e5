"""`make demo-batch`: runs a batch in the spare capacity of a pool. Exit code 0 only if every claim held."""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from adsum.signals import STOP_SIGNALS, cancel_on
from adsum.tasks import first_of
from examples.demo.cluster import MODEL, DemoCluster, MoreFlags
from examples.demo.processes import DemoError
from examples.demo_batch.dispatcher import BatchDispatcher
from examples.demo_batch.monitor import PoolMonitor
from examples.demo_batch.plot import plot
from examples.demo_batch.pool import SEQUENCES, SIMULATOR
from examples.demo_batch.protection import BASELINE, BY_FLOW_CONTROL, BY_LOAD
from examples.demo_batch.screen import print_run, show_progress
from examples.demo_batch.summary import BatchRun
from examples.demo_batch.users import Users

_SETTLE_SECONDS = 2.0


def main() -> int:
    options = _options()
    console = Console()
    try:
        _check_writable(options.plot)
        run = asyncio.run(_run(console, options))
    except DemoError as error:
        console.print(str(error), markup=False, style="red", soft_wrap=True)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    passed = print_run(console, run)
    options.plot.write_text(plot(run))
    console.print(f"the picture: {options.plot}", soft_wrap=True)
    return 0 if passed else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.demo_batch", description=__doc__)
    parser.add_argument("--port", type=int, default=8080, help="where Envoy listens; 0: any free port (8080)")
    parser.add_argument("--requests", type=_at_least_one, default=2000, help="in the batch (2000)")
    parser.add_argument(
        "--alone", type=float, default=12.0, metavar="SECONDS", help="interactive users only, before (12)"
    )
    parser.add_argument(
        "--plot", type=Path, default=Path(".build/demo-batch.svg"), metavar="FILE", help="(%(default)s)"
    )
    parser.add_argument(
        "--no-flow-control", action="store_true", help="only the dispatcher's gate keeps the batch back"
    )
    return parser.parse_args()


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def _check_writable(plot: Path) -> None:
    """Raises DemoError at the start, rather than after the run."""
    try:
        plot.parent.mkdir(parents=True, exist_ok=True)
        plot.open("ab").close()
    except OSError as error:
        raise DemoError(
            f"{plot} cannot be written ({error.strerror}); choose another file: --plot FILE"
        ) from error


async def _run(console: Console, options: argparse.Namespace) -> BatchRun:
    cancel_on(*STOP_SIGNALS)
    with tempfile.TemporaryDirectory(prefix="adsum-demo-") as root:
        protection = BY_LOAD if options.no_flow_control else BY_FLOW_CONTROL
        console.print("starting three workers, the picker, Envoy, Redis and the dispatcher ...")
        async with (
            DemoCluster(
                Path(root),
                options.port,
                flags=MoreFlags(SIMULATOR, protection.picker, protection.envoy),
                make_target="demo-batch",
            ) as cluster,
            BatchDispatcher(cluster, Path(root), protection) as dispatcher,
            Users(cluster.url, MODEL) as users,
            PoolMonitor(cluster, dispatcher, users.in_flight) as monitor,
        ):
            batch = _run_batch(console, options, cluster, dispatcher, users, monitor)
            run = await first_of(monitor.run(), show_progress(console, monitor), batch)
            assert run is not None  # the others only end by what they raise
            return run


async def _run_batch(
    console: Console,
    options: argparse.Namespace,
    cluster: DemoCluster,
    dispatcher: BatchDispatcher,
    users: Users,
    monitor: PoolMonitor,
) -> BatchRun:
    started = time.monotonic()
    await asyncio.sleep(options.alone)
    console.print(f"{options.requests} batch requests are submitted")
    answers = await dispatcher.submit(options.requests)
    answered = time.monotonic()
    await asyncio.sleep(_SETTLE_SECONDS)
    await monitor.sample()
    capacity = len(cluster.workers) * SEQUENCES
    return BatchRun(
        started=started,
        submitted=next((sample.at for sample in monitor.samples if sample.sent), answered),
        answered=answered,
        capacity=capacity,
        line=capacity * (1 - float(BASELINE)),
        requests=options.requests,
        answers=answers,
        counted=monitor.counted(),
        samples=monitor.samples,
        exchanges=list(users.exchanges()),
    )


if __name__ == "__main__":
    sys.exit(main())
