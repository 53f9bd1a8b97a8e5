"""The command lines of `epp decisions` and `epp explain`."""

import argparse
from pathlib import Path
from typing import Any, Final

from adsum.command_line import Parser, argument, program
from adsum.units import parse_duration

DEFAULT_PICKER: Final = "http://127.0.0.1:9090"
_MOST: Final = 1000


def decisions_parser() -> argparse.ArgumentParser:
    parser = _parser(
        "decisions", "Shows the last decisions of a running picker, the newest last; times are UTC."
    )
    add: Any = parser.add_argument
    add(
        "--follow",
        "-f",
        action="store_true",
        help="go on with new ones, once they are answered, until Ctrl-C",
    )
    add(
        "--slow",
        type=argument(parse_duration),
        metavar="DURATION",
        help="only those whose response headers took this long: 500ms",
    )
    _add_id(parser)
    add("--request", metavar="ID", help="the same")
    add("--limit", type=_count, default=20, metavar="N", help="so many, up to 1000 (default: 20)")
    add("--json", action="store_true", help="one JSON object a line, for scripts")
    return parser


def explain_parser() -> argparse.ArgumentParser:
    parser = _parser(
        "explain",
        "Says what a running picker would do with a request, without sending it, or what it did with a past one.",
    )
    add: Any = parser.add_argument
    _add_id(parser)
    add(
        "--request",
        type=Path,
        metavar="FILE",
        help="the body as for curl -d @FILE, or a whole HTTP request as text; - is standard input",
    )
    add(
        "--header",
        "-H",
        action="append",
        default=[],
        type=_header,
        metavar="'NAME: VALUE'",
        help="a header of the request; repeatable",
    )
    add("--path", metavar="PATH", help="of the request (default: by the body, /v1/chat/completions)")
    add("--candidates", type=_count, default=20, metavar="N", help="endpoints to show (default: 20)")
    add("--json", action="store_true", help="the picker's answer as it is")
    return parser


def _parser(name: str, description: str) -> argparse.ArgumentParser:
    parser = Parser(prog=f"{program('epp')} {name}", description=description, allow_abbrev=False)
    add: Any = parser.add_argument
    add(
        "--picker",
        default=DEFAULT_PICKER,
        metavar="URL",
        help=f"its metrics port (default: {DEFAULT_PICKER})",
    )
    add(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="the bearer token for a picker elsewhere, that of its --debug-token-file",
    )
    add("--ca-file", type=Path, metavar="FILE", help="PEM: who signed the certificate of an https picker")
    return parser


def _add_id(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "id", nargs="?", metavar="ID", help="all about the past request with this x-request-id"
    )


def _count(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 4 or not 1 <= int(text) <= _MOST:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is not a whole number from 1 to {_MOST}")
    return int(text)


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not 'NAME: VALUE'")
    return name.strip().lower(), value.strip()
