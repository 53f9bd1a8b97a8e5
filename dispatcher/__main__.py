"""`python -m dispatcher --config FILE`: the dispatcher. `submit`, `status`, `cancel`, `dead-letters`: for people."""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence

from runtime.command_line import FAILED, INTERRUPTED, complain, not_installed, output_unwanted, with_commands


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 after SIGTERM or SIGINT, 1 when something failed, 2 for bad input, 3: answers are errors."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        return _run(given)
    except ModuleNotFoundError as missing:  # the dispatcher's libraries are an extra
        return complain(not_installed(missing, "dispatcher"), FAILED)


def build_parser() -> argparse.ArgumentParser:
    """All that the command line takes: the dispatcher's flags, or a command and its own."""
    from dispatcher.cli import flags

    looks = {name: flags.look_parser(name) for name in flags.COMMANDS if name != "submit"}
    return with_commands(flags.serve_parser(), {"submit": flags.submit_parser(), **looks})


def _run(given: Sequence[str]) -> int:
    from dispatcher.broker.queue import QueueError
    from dispatcher.cli.batch_file import BatchFileError
    from runtime.config.problems import ConfigError

    try:
        return asyncio.run(_work(_chosen(given)))
    except KeyboardInterrupt:
        if given[:1] == ["submit"]:
            print("stopped; what was submitted stays, the same command goes on from here", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        return output_unwanted()
    except (ConfigError, BatchFileError, QueueError, OSError) as error:
        return complain(error)


def _chosen(given: Sequence[str]) -> Callable[[], Awaitable[int]]:
    """What to run, imported only now: the commands do without half of it."""
    from dispatcher.cli import flags

    if given and given[0] in flags.COMMANDS:
        from dispatcher.cli import commands

        return commands.parsed(given[0], given[1:])
    if given and not given[0].startswith("-"):
        flags.complain(f"there is no command {given[0]!r}; there are {', '.join(flags.COMMANDS)}")
    told = flags.parse_serve(given)
    from dispatcher.process import serve

    return lambda: serve(told)


async def _work(chosen: Callable[[], Awaitable[int]]) -> int:
    code = await chosen()
    sys.stdout.flush()
    return code


if __name__ == "__main__":
    sys.exit(main())
