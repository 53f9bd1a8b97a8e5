"""`python -m discovery list|watch|explain|check`: the command line; its commands are in `commands.py`."""

import argparse
import sys
from collections.abc import Sequence

from discovery.errors import AdsumError
from discovery.source import SCHEMES
from runtime.command_line import INTERRUPTED, Parser, ShowVersion, on_broken_pipe, print_error, program


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 success, 1 something is wrong with the workers, 2 wrong usage."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    parser = build_parser()
    if given and given[0].startswith("-") and given[0] not in ("-h", "--help", "--version"):
        parser.error(
            f"{given[0]} stands before the command; expected the command first, its options behind it"
        )
    options = parser.parse_args(given)
    try:
        from discovery.commands import run  # imported after the flags are parsed, so that --help is fast

        return run(options)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return on_broken_pipe()
    except (AdsumError, ValueError, OSError) as error:
        return print_error(error)


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=program("discovery"),
        description="Who is there? Workers are shown the bearer token in $ADSUM_TOKEN, if there is one.",
    )
    parser.add_argument("--version", action=ShowVersion)
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND")
    shared = Parser(add_help=False)
    shared.add_argument("namespace")
    shared.add_argument("component")
    shared.add_argument(
        "--discovery",
        metavar="URL",
        help=f"where to look: {SCHEMES}; or a scheme of an installed package",
    )
    shared.add_argument("--json", action="store_true", help="one JSON object a line, for scripts")
    listing = commands.add_parser("list", parents=[shared], help="the ready instances now")
    listing.add_argument("--timeout", type=float, default=10.0, metavar="SECONDS")
    listing.add_argument("--metadata", action="store_true", help="their metadata too")
    watching = commands.add_parser(
        "watch", parents=[shared], help="the ready instances and their changes, until Ctrl-C"
    )
    watching.add_argument(
        "--metadata", action="store_true", help="follow their metadata and reachability too"
    )
    commands.add_parser("explain", parents=[shared], help="every candidate, and why it is no instance")
    checking = commands.add_parser("check", help="test a worker's wire contract")
    checking.add_argument("url", metavar="URL", help="http://host:port")
    return parser


if __name__ == "__main__":
    sys.exit(main())
