"""`python -m dispatcher --config FILE`: the dispatcher. `submit`, `status`, `cancel`, `dead-letters`: for people."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence

STOPPED = 130
"""The exit code of a command that was ended by Ctrl-C."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 after SIGTERM or SIGINT, 1 when something failed, 2 for bad input, 3: answers are errors."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        return _run(given)
    except ModuleNotFoundError as missing:  # the dispatcher's libraries are an extra
        from discovery.command_line import not_installed

        sys.exit(f"error: {not_installed(missing, 'dispatcher')}")


def _run(given: Sequence[str]) -> int:
    from dispatcher.broker.queue import QueueError
    from dispatcher.cli.batch_file import BatchFileError
    from runtime.config.problems import ConfigError

    try:
        return asyncio.run(_work(_chosen(given)))
    except KeyboardInterrupt:
        if given[:1] == ["submit"]:
            print("stopped; what was submitted stays, the same command goes on from here", file=sys.stderr)
        return STOPPED
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ConfigError, BatchFileError, QueueError, OSError) as error:
        return _complain(error)


def _complain(error: Exception) -> int:
    from discovery.command_line import complain  # half a second of imports, for who fails only

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
