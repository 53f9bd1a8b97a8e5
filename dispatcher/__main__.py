"""`python -m dispatcher --config FILE`: the dispatcher. `submit`, `status`, `cancel`, `dead-letters`: for people."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 after SIGTERM or SIGINT, 1 when something failed, 2 for bad input, 3: answers are errors."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        return _run(given)
    except ModuleNotFoundError as missing:  # the dispatcher's libraries are an extra
        return _complain(f"the module {missing.name!r} is not installed; pip install 'adsum[dispatcher]'", 1)


def _run(given: Sequence[str]) -> int:
    from dispatcher.batchfile import BatchFileError
    from dispatcher.config import ConfigError
    from dispatcher.queue import QueueError

    try:
        return asyncio.run(_work(_chosen(given)))
    except KeyboardInterrupt:
        return _complain("stopped; what was submitted stays, the same command goes on from here", 130)
    except (ConfigError, BatchFileError) as error:
        return _complain(str(error), 2)
    except (QueueError, OSError) as error:
        return _complain(str(error), 1)


def _chosen(given: Sequence[str]) -> Callable[[], Awaitable[int]]:
    """What to run, imported only now: the commands do without half of it."""
    from dispatcher import flags

    if given and given[0] in flags.COMMANDS:
        from dispatcher import commands

        return commands.parsed(given[0], given[1:])
    if given and not given[0].startswith("-"):
        flags.complain(f"there is no command {given[0]!r}; there are {', '.join(flags.COMMANDS)}")
    told = flags.parse_serve(given)
    from dispatcher.serving import serve

    return lambda: serve(told)


async def _work(chosen: Callable[[], Awaitable[int]]) -> int:
    return await chosen()


def _complain(text: str, code: int) -> int:
    print(f"python -m dispatcher: {text}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
