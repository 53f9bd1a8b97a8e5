"""The flags of all commands; parses and checks them."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from adsum.command_line import Parser, ShowVersion, add_log_format, argument, program
from adsum.quoting import quoted
from adsum.units import parse_duration

COMMANDS = ("submit", "status", "cancel", "dead-letters")


_AUTHORITY = re.compile(r"://([^\s'\"]++)")


class DispatcherParser(Parser):
    """Errors quote no password of a URL."""

    def error(self, message: str) -> NoReturn:
        """Print one line; exit with 2."""
        super().error(_AUTHORITY.sub(_without_credentials, message))


def exit_with_error(message: str) -> NoReturn:
    """Print one line; exit with 2."""
    DispatcherParser(prog=program("dispatcher")).error(message)


def serve_parser() -> DispatcherParser:
    parser = DispatcherParser(
        prog=program("dispatcher"),
        description="Sends queued requests to a gateway when the pool behind it has room. "
        f"Commands, each with --help: {program('dispatcher')} {'|'.join(COMMANDS)}",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--config", type=Path, required=True, metavar="FILE", help="YAML; see docs/dispatcher.md")
    add("--dry-run", action="store_true", help="print what each gate would admit now, send nothing, and exit")
    add(
        "--tracing",
        action="store_true",
        help="record traces with OpenTelemetry, as OTEL_* say; docs/tracing.md",
    )
    add_log_format(parser)
    add("--version", action=ShowVersion)
    add("-v", action="count", default=0, dest="verbosity", help="log more; twice: everything")
    return parser


def parse_submit(arguments: Sequence[str]) -> argparse.Namespace:
    """Without a `batch` it is the name of the file. Exits with 2 on bad input."""
    parser = submit_parser()
    given = _checked(parser, parser.parse_args(arguments))
    given.batch = given.batch or given.file.stem
    if given.results is not None and given.results.resolve() == given.file.resolve():
        parser.error("--results is the batch file itself")
    return given


def submit_parser() -> DispatcherParser:
    parser = _command_parser(
        "submit", "Puts a batch file into a queue; run it again to go on where it stopped."
    )
    add = parser.add_argument
    add("file", type=Path, help='JSONL: {"custom_id": "...", "url": "/v1/...", "body": {...}}')
    add("--results", type=Path, metavar="FILE", help="wait, and write the answers there (JSONL)")
    add("--batch", metavar="NAME", help="what this batch is called (default: the file's name)")
    add("--tenant", default="default", help="whose share of the queue it is")
    add("--objective", default="", help="the inference objective, where the queue has none")
    add("--deadline", type=_duration, default=86400.0, metavar="DURATION", help="default: 24h")
    return parser


def parse_inspect(command: str, arguments: Sequence[str]) -> argparse.Namespace:
    """Exits with 2 on bad input."""
    parser = inspect_parser(command)
    return _checked(parser, parser.parse_args(arguments))


def inspect_parser(command: str) -> DispatcherParser:
    """The parser of status, cancel or dead-letters."""
    about = {
        "status": "The state of requests; without ids, the totals of the queue.",
        "cancel": "Cancels requests, queued or in flight; each gets the result CANCELLED.",
        "dead-letters": "Messages that were no requests, and requests whose dispatchers died too often; newest first.",
    }
    parser = _command_parser(command, about[command])
    add = parser.add_argument
    if command != "dead-letters":
        add(
            "ids",
            nargs="*" if command == "status" else "+",
            metavar="ID",
            help="of a request; of a batch: NAME:custom_id",
        )
    else:
        add("--limit", type=_count, default=20, help="dead letters shown at most (default: 20)")
    add("--json", action="store_true", help="one JSON object a line")
    return parser


def _command_parser(command: str, description: str) -> DispatcherParser:
    parser = DispatcherParser(
        prog=f"{program('dispatcher')} {command}", description=description, allow_abbrev=False
    )
    add = parser.add_argument
    add("--config", type=Path, metavar="FILE", help="the dispatcher's configuration")
    add("--broker", metavar="URL", help="in place of --config: redis://HOST:PORT/DB")
    add("--queue", metavar="NAME", help="optional if the configuration has only one")
    return parser


def _checked(parser: DispatcherParser, given: argparse.Namespace) -> argparse.Namespace:
    if (given.config is None) == (given.broker is None):
        parser.error("say where the queue is: --config FILE, or --broker URL --queue NAME")
    if given.broker is not None and given.queue is None:
        parser.error("--broker needs --queue NAME")
    return given


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:10]) > 0):
        raise argparse.ArgumentTypeError(f"{quoted(text)} is no number of dead letters; expected 1 or more")
    return int(text[:10])


def _duration(text: str) -> float:
    seconds = argument(parse_duration)(text)
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive duration")
    return seconds


def _without_credentials(found: re.Match[str]) -> str:
    return f"://...@{found[1].rpartition('@')[2]}" if "@" in found[1] else found[0]
