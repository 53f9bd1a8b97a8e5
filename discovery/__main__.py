"""`python -m discovery list|watch|explain|serve|check|eds`: the command line; its commands are in `commands.py`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from adsum import command_line
from adsum.addresses import split_authority
from discovery.errors import AdsumError
from discovery.source import SOURCE_URLS

DEFAULT_LISTEN = "127.0.0.1:8082"


def _address(text: str) -> str:
    """The text, if it is ADDRESS:PORT; raises ValueError."""
    split_authority(text, min_port=0, expected="ADDRESS:PORT")
    return text


_ADDRESS = command_line.argument(_address)


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
        return command_line.INTERRUPTED
    except BrokenPipeError:
        return command_line.on_broken_pipe()
    except (AdsumError, ValueError, OSError) as error:
        return command_line.print_error(error)


def build_parser() -> argparse.ArgumentParser:
    parser = command_line.Parser(
        prog=command_line.program("discovery"),
        description="Who is there? Workers are shown the bearer token in $ADSUM_TOKEN, if there is one.",
    )
    parser.add_argument("--version", action=command_line.ShowVersion)
    commands = parser.add_subparsers(
        required=True, dest="command", metavar="COMMAND", parser_class=command_line.CommandParser
    )
    url = command_line.CommandParser(add_help=False)
    url.add_argument(
        "--discovery",
        metavar="URL",
        help=f"where to look: {SOURCE_URLS}; or a scheme of an installed package",
    )
    as_json = command_line.CommandParser(add_help=False)
    as_json.add_argument("--json", action="store_true", help="one JSON object a line, for scripts")
    place = command_line.CommandParser(add_help=False, parents=[url])
    place.add_argument("namespace", help="of the workers, as they registered")
    place.add_argument("component", help="of the workers in it, such as decode")
    shared = command_line.CommandParser(add_help=False, parents=[place, as_json])
    now = "the ready instances now; without names: what is there"
    _add_list_flags(commands.add_parser("list", parents=[url, as_json], help=now))
    watching = commands.add_parser(
        "watch", parents=[shared], help="the ready instances and their changes, until Ctrl-C"
    )
    watching.add_argument(
        "--metadata", action="store_true", help="follow their metadata and reachability too"
    )
    commands.add_parser("explain", parents=[shared], help="every candidate, and why it is no instance")
    page = "a page of who is there, and metrics, until Ctrl-C"
    _add_serve_flags(commands.add_parser("serve", parents=[place], help=page))
    current = "keep an Envoy cluster's endpoints current, until Ctrl-C"
    _add_eds_flags(commands.add_parser("eds", parents=[place], help=current))
    checking = commands.add_parser("check", help="test a worker's wire contract")
    checking.add_argument("url", metavar="URL", help="http://host:port")
    return parser


def _add_list_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("namespace", nargs="?", help="of the workers, as they registered")
    parser.add_argument("component", nargs="?", help="of the workers in it, such as decode")
    patience = "how long the source may take to answer (default: 10)"
    parser.add_argument("--timeout", type=float, default=10.0, metavar="SECONDS", help=patience)
    parser.add_argument("--metadata", action="store_true", help="their metadata too")


def _add_serve_flags(parser: argparse.ArgumentParser) -> None:
    command_line.add_log_format(parser)
    listen = f"where the page and /metrics are ({DEFAULT_LISTEN})"
    add = parser.add_argument
    add("--listen", type=_ADDRESS, default=DEFAULT_LISTEN, metavar="ADDRESS:PORT", help=listen)
    senders = "show the page to who sends this token too, not to this machine alone"
    add("--debug-token-file", type=Path, metavar="FILE", help=senders)
    address = "a port of its own for the page, served to all who reach it unless there is a token"
    add("--debug-address", type=_ADDRESS, metavar="ADDRESS:PORT", help=address)


def _add_eds_flags(parser: argparse.ArgumentParser) -> None:
    command_line.add_log_format(parser)
    add = parser.add_argument
    add("--out", type=Path, metavar="FILE", help="write an EDS file, which Envoy watches")
    listen = "serve EDS over gRPC, state of the world; in plain text without --cert-path"
    add("--listen", type=_ADDRESS, metavar="ADDRESS:PORT", help=listen)
    add("--cert-path", type=Path, metavar="DIR", help="tls.crt and tls.key of --listen; reloaded")
    authority = "only clients with a certificate that it signed may ask; reloaded"
    add("--client-ca-file", type=Path, metavar="FILE", help=authority)
    add("--once", action="store_true", help="write the file and end: Envoy starts only if it is there")
    add("--cluster-name", default="workers", metavar="NAME", help="of Envoy's cluster (workers)")
    add("--serving-port-name", metavar="NAME", help="of the port that serves, as the picker's flag")
    interval = "between two changes of the endpoints, at least (0.1)"
    add("--interval", type=float, default=0.1, metavar="SECONDS", help=interval)


if __name__ == "__main__":
    sys.exit(main())
