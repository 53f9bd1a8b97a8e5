"""`make demo`: half a minute in the life of a pool. Exit code 0 only if what it claims held."""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from examples.demo.load import Load
from examples.demo.processes import DemoError
from examples.demo.screen import print_summary, show, show_kept
from examples.demo.stage import COMPONENT, MODEL, NAMESPACE, Stage
from examples.demo.story import Story
from examples.demo.summary import Summary
from runtime.signals import STOP, cancel_on
from runtime.tasks import background


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument("--port", type=int, default=8080, help="where Envoy listens; 0: any free port (8080)")
    parser.add_argument("--keep", action="store_true", help="leave it running until Ctrl-C")
    options = parser.parse_args()
    console = Console()
    try:
        return asyncio.run(_run(console, options.port, keep=options.keep))
    except DemoError as error:
        console.print(str(error), markup=False, style="red", soft_wrap=True)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130


async def _run(console: Console, port: int, *, keep: bool) -> int:
    cancel_on(*STOP)
    with tempfile.TemporaryDirectory(prefix="adsum-demo-") as root:
        console.print("starting three workers, the picker and Envoy ...")
        async with Stage(Path(root), port, word="demo KEEP=1" if keep else "demo") as stage:
            summary = await _play(console, stage)
            held = print_summary(console, summary)
            if keep:
                await _keep(console, stage)
                console.print("stopping; the picker takes leave of Envoy for 3 s ...")
    return 0 if held else 1


async def _keep(console: Console, stage: Stage) -> None:
    told = _told_to_stop()
    ready = _print_invitation(console, stage)
    async with (
        Load(stage.url, MODEL, remembered=10_000) as load,
        background(show_kept(console, stage, load, ready)),
    ):
        await told.wait()


def _told_to_stop() -> asyncio.Event:
    """Set by Ctrl-C or SIGTERM: a demo that is kept should end so, and what it claimed decides the exit code."""
    told = asyncio.Event()
    for number in STOP:
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    return told


async def _play(console: Console, stage: Stage) -> Summary:
    async with Load(stage.url, MODEL) as load:
        story = Story(stage, load)
        async with background(show(console, stage, story)):
            await story.tell()
            stage.check_alive()
            await load.stop()
        return Summary(list(load.exchanges), story.happenings)


def _print_invitation(console: Console, stage: Stage) -> list[str]:
    """The workers whose pids it names."""
    body = f'{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "Who is there?"}}]}}'
    console.print("\nIt goes on until Ctrl-C, with the same users. Try:", style="bold")
    alive = [name for name, worker in stage.workers.items() if worker.alive]
    for name in alive:
        console.print(f"  kill -9 {stage.workers[name].pid}   # {name}", highlight=False)
    console.print("  (kill PID: it drains; kill -USR1 PID: not ready, and ready again)", highlight=False)
    console.print(f"  curl {stage.metrics}/debug/endpoints", soft_wrap=True)
    console.print(
        f"  curl -i {stage.url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'",
        soft_wrap=True,
    )
    console.print(
        f"  {sys.executable} -m discovery watch {NAMESPACE} {COMPONENT} --discovery {stage.discovery}",
        soft_wrap=True,
    )
    return alive


if __name__ == "__main__":
    sys.exit(main())
