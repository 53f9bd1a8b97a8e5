"""The command line of `adsum serve`."""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from adsum.command_line import Parser, ShowVersion, add_log_format, argument
from epp.config.declared_flags import duration, port

PORT: Final = 8800
"""vLLM listens on 8000, llama.cpp on 8080, the dispatcher on 8081."""
MORE_PORTS: Final = 2
"""Behind --port: the page, and what Envoy asks the picker at."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Exits with 2 on bad input."""
    parser = build_parser()
    given = parser.parse_args(arguments)
    if given.discovery is not None and given.endpoint:
        parser.error("--discovery and --endpoint exclude each other: both name the source of workers")
    if given.port > 65535 - MORE_PORTS:
        parser.error(
            f"--port {given.port}: the next {MORE_PORTS} ports are used too; expected at most {65535 - MORE_PORTS}"
        )
    return given


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="adsum serve",
        description="The picker and an Envoy in front of your workers, as one group of processes: an OpenAI address.",
        allow_abbrev=False,
    )
    _worker_flags(parser)
    _own_flags(parser)
    add_log_format(parser)
    parser.add_argument("--version", action=ShowVersion)
    return parser


def _own_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--config-file",
        type=Path,
        metavar="FILE",
        help="the picker's configuration, read again when it changes",
    )
    add(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address that clients connect to (default: 127.0.0.1)",
    )
    ports = f"the OpenAI address; the page is on the next port, and the one after it is Envoy's way to the picker; 0: any (default: {PORT})"
    add("--port", type=port, default=PORT, metavar="PORT", help=ports)
    add(
        "--with-dispatcher",
        type=Path,
        metavar="FILE",
        help="a dispatcher with this configuration, for batch requests",
    )
    drain = "after SIGTERM, for requests under way (default: 30s)"
    add("--drain-timeout", type=duration, default=30.0, metavar="DURATION", help=drain)
    add(
        "--picker",
        type=argument(_words),
        default=[],
        metavar="FLAGS",
        help="more flags of adsum epp, as one word: --picker='--model m'",
    )
    envoy = "more flags of adsum epp envoy-config, as one word: --envoy='--access-log /dev/stdout'"
    add("--envoy", type=argument(_words), default=[], metavar="FLAGS", help=envoy)
    add(
        "--print",
        action="store_true",
        help="print the commands and Envoy's configuration as a shell script, and end",
    )


def _worker_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--endpoint", metavar="HOST:PORT", action="append", default=[], help="a worker; repeatable")
    add("--discovery", metavar="URL", help="the source of workers, a URL ($ADSUM_DISCOVERY)")
    add("--namespace", help="of the workers (default: default)")
    add("--component", help="of the workers (default: default)")


def _words(text: str) -> list[str]:
    # bounded: the operator's flag
    return shlex.split(text)
