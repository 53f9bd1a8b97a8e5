"""The command line: `--config FILE` runs the dispatcher; `submit`, `status`, `cancel`, `dead-letters` work on its queues."""

import argparse
import sys
from collections.abc import Coroutine, Sequence
from typing import Any

from adsum.command_line import FAILED, INTERRUPTED, not_installed, on_broken_pipe, print_error, with_commands
from dispatcher.cli import flags


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 after SIGTERM or SIGINT, 1 if something failed, 2 for bad input, 3 if answers are errors."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        return _run(given)
    except ModuleNotFoundError as missing:  # the dispatcher's libraries are an extra
        return print_error(not_installed(missing, "dispatcher"), FAILED)


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands, for help and shell completion."""
    parsers = {name: flags.inspect_parser(name) for name in flags.COMMANDS if name != "submit"}
    return with_commands(flags.serve_parser(), {"submit": flags.submit_parser(), **parsers})


def _run(given: Sequence[str]) -> int:
    """Commands are imported after their flags are parsed: `--help` need not wait for them."""
    command = _select_command(given)
    import asyncio

    from adsum.config.problems import ConfigError
    from adsum.errors import AdsumError
    from dispatcher.broker.contract.queue import QueueError
    from dispatcher.cli.batch_file import BatchFileError

    try:
        return asyncio.run(_run_and_flush(command))
    except KeyboardInterrupt:
        if given[:1] == ["submit"]:
            print(
                "stopped; submitted requests stay in the queue, the same command continues", file=sys.stderr
            )
        return INTERRUPTED
    except BrokenPipeError:
        return on_broken_pipe()
    except (AdsumError, ConfigError, BatchFileError, QueueError, OSError) as error:
        return print_error(error)


def _select_command(given: Sequence[str]) -> Coroutine[Any, Any, int]:
    """The command to run. Exits with 2 on bad flags."""
    if given[:1] == ["submit"]:
        options = flags.parse_submit(given[1:])
        from dispatcher.cli.batch import submit

        return submit(options)
    if given and given[0] in flags.COMMANDS:
        options = flags.parse_inspect(given[0], given[1:])
        from dispatcher.cli.commands import HANDLERS

        return HANDLERS[given[0]](options)
    if given and not given[0].startswith("-"):
        flags.exit_with_error(f"there is no command {given[0]!r}; there are {', '.join(flags.COMMANDS)}")
    options = flags.serve_parser().parse_args(given)
    from dispatcher.process import serve

    return serve(options)


async def _run_and_flush(command: Coroutine[Any, Any, int]) -> int:
    code = await command
    sys.stdout.flush()
    return code


if __name__ == "__main__":
    sys.exit(main())
