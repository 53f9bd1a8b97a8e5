"""`make demo`: workers join, fail and drain under load for half a minute. Exit code 0 only if every claim held."""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from adsum.signals import STOP_SIGNALS, cancel_on
from adsum.tasks import background
from examples.demo.cluster import COMPONENT, MODEL, NAMESPACE, PUBLISHES, DemoCluster
from examples.demo.disaggregated import NEW_WORDS, PairsCluster, PairsScenario, PairsSummary
from examples.demo.load import LoadGenerator
from examples.demo.processes import DemoError
from examples.demo.scenario import Scenario
from examples.demo.screen import print_summary, show_progress, show_until_stopped
from examples.demo.summary import Summary


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument("--port", type=int, default=8080, help="where Envoy listens; 0: any free port (8080)")
    parser.add_argument(
        "--disaggregated",
        action="store_true",
        help="workers that only compute prompts, and others that decode",
    )
    parser.add_argument("--keep", action="store_true", help="leave it running until Ctrl-C")
    options = parser.parse_args()
    console = Console()
    try:
        return asyncio.run(_run(console, options.port, keep=options.keep, pairs=options.disaggregated))
    except DemoError as error:
        console.print(str(error), markup=False, style="red", soft_wrap=True)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130


async def _run(console: Console, port: int, *, keep: bool, pairs: bool) -> int:
    cancel_on(*STOP_SIGNALS)
    kind = PairsCluster if pairs else DemoCluster
    with tempfile.TemporaryDirectory(prefix="adsum-demo-") as root:
        console.print(f"starting {kind.first_workers} workers, the picker and Envoy ...")
        more: dict[str, Any] = {} if pairs else {"flags": PUBLISHES}
        async with kind(Path(root), port, make_target="demo KEEP=1" if keep else "demo", **more) as cluster:
            summary = await (_run_pairs if pairs else _run_scenario)(console, cluster)
            passed = print_summary(console, summary)
            if keep:
                await _run_until_stopped(console, cluster)
                console.print("stopping; the picker takes leave of Envoy for 3 s ...")
    return 0 if passed else 1


async def _run_until_stopped(console: Console, cluster: DemoCluster) -> None:
    stopped = _stop_event()
    ready = _print_commands(console, cluster)
    async with (
        LoadGenerator(cluster.url, MODEL, max_exchanges=10_000) as load,
        background(show_until_stopped(console, cluster, load, ready)),
    ):
        await stopped.wait()


def _stop_event() -> asyncio.Event:
    """Set by Ctrl-C or SIGTERM, which end `--keep` regularly: the claims still decide the exit code."""
    stopped = asyncio.Event()
    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    return stopped


async def _run_scenario(console: Console, cluster: DemoCluster) -> Summary:
    async with LoadGenerator(cluster.url, MODEL) as load:
        scenario = Scenario(cluster, load)
        async with background(show_progress(console, cluster, scenario)):
            await scenario.run()
            cluster.check_alive()
            await load.stop()
            caches = await cluster.known_caches() if PUBLISHES.simulator else {}
        return Summary(list(load.exchanges), scenario.events, caches=caches)


async def _run_pairs(console: Console, cluster: DemoCluster) -> Summary:
    async with LoadGenerator(cluster.url, MODEL, new_words=NEW_WORDS) as load:
        scenario = PairsScenario(cluster, load)
        async with background(show_progress(console, cluster, scenario)):
            await scenario.run()
            cluster.check_alive()
            await load.stop()
            await scenario.look_at_blocks()
        return PairsSummary(list(load.exchanges), scenario.events, scenario.apart, scenario.held)


def _print_commands(console: Console, cluster: DemoCluster) -> list[str]:
    """Print what a user can try; returns the workers whose pids are printed."""
    body = f'{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "Who is there?"}}]}}'
    console.print("\nIt goes on until Ctrl-C, with the same users. Try:", style="bold")
    alive = [name for name, worker in cluster.workers.items() if worker.alive]
    for name in alive:
        console.print(f"  kill -9 {cluster.workers[name].pid}   # {name}", highlight=False)
    console.print("  (kill PID: it drains; kill -USR1 PID: not ready, and ready again)", highlight=False)
    console.print(
        f"  {cluster.metrics}/   # in a browser: the pool, and why each request went there", soft_wrap=True
    )
    console.print(f"  {sys.executable} -m epp decisions --picker {cluster.metrics}", soft_wrap=True)
    console.print(
        f"  curl -i {cluster.url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'",
        soft_wrap=True,
    )
    console.print(
        f"  {sys.executable} -m discovery watch {NAMESPACE} {COMPONENT} --discovery {cluster.discovery}",
        soft_wrap=True,
    )
    return alive


if __name__ == "__main__":
    sys.exit(main())
