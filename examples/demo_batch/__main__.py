"""`make demo-batch`: a batch in the spare capacity of a pool, for a minute. Exit code 0 only if what it claims held."""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from examples.demo.processes import DemoError
from examples.demo.stage import MODEL, Stage
from examples.demo_batch.dispatching import BASELINE, Dispatching
from examples.demo_batch.picture import picture
from examples.demo_batch.pool import SEQUENCES, SIMULATOR
from examples.demo_batch.screen import print_play, show
from examples.demo_batch.summary import Play
from examples.demo_batch.users import Users
from examples.demo_batch.watching import Watching
from runtime.signals import STOP, cancel_on
from runtime.tasks import first_of

_AFTERWARDS = 2.0


def main() -> int:
    options = _options()
    console = Console()
    try:
        _check_writable(options.plot)
        play = asyncio.run(_run(console, options))
    except DemoError as error:
        console.print(str(error), markup=False, style="red", soft_wrap=True)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    held = print_play(console, play)
    options.plot.write_text(picture(play))
    console.print(f"the picture: {options.plot}", soft_wrap=True)
    return 0 if held else 1


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
    return parser.parse_args()


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def _check_writable(plot: Path) -> None:
    """A minute before it is written."""
    try:
        plot.parent.mkdir(parents=True, exist_ok=True)
        plot.open("ab").close()
    except OSError as error:
        raise DemoError(f"{plot} cannot be written ({error.strerror}); another one: --plot FILE") from error


async def _run(console: Console, options: argparse.Namespace) -> Play:
    cancel_on(*STOP)
    with tempfile.TemporaryDirectory(prefix="adsum-demo-") as root:
        console.print("starting three workers, the picker, Envoy, Redis and the dispatcher ...")
        async with (
            Stage(Path(root), options.port, simulator=SIMULATOR, word="demo-batch") as stage,
            Dispatching(stage, Path(root)) as dispatching,
            Users(stage.url, MODEL) as users,
            Watching(stage, dispatching, users.under_way) as watching,
        ):
            acting = _act(console, options, stage, dispatching, users, watching)
            play = await first_of(watching.run(), show(console, watching), acting)
            assert play is not None  # the others only end by what they raise
            return play


async def _act(
    console: Console,
    options: argparse.Namespace,
    stage: Stage,
    dispatching: Dispatching,
    users: Users,
    watching: Watching,
) -> Play:
    begun = time.monotonic()
    await asyncio.sleep(options.alone)
    console.print(f"{options.requests} batch requests are submitted")
    answers = await dispatching.answer(options.requests)
    answered = time.monotonic()
    await asyncio.sleep(_AFTERWARDS)
    await watching.look()
    capacity = len(stage.workers) * SEQUENCES
    return Play(
        begun=begun,
        submitted=next((sample.at for sample in watching.samples if sample.sent), answered),
        answered=answered,
        capacity=capacity,
        line=capacity * (1 - float(BASELINE)),
        requests=options.requests,
        answers=answers,
        counted=watching.counted(),
        samples=watching.samples,
        exchanges=list(users.exchanges()),
    )


if __name__ == "__main__":
    sys.exit(main())
