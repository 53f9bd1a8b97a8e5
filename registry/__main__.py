"""`python -m registry`: the sidecar that registers a model server which cannot register itself (vLLM, SGLang, ...).
`pd-sidecar`: the one in front of a decode worker.
"""

import argparse
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from adsum import command_line
from adsum.errors import AdsumError
from adsum.quoting import quoted
from adsum.units import parse_duration
from discovery.instance import ENGINES
from registry.disaggregation import flags as pd_flags

if TYPE_CHECKING:
    from yarl import URL

_PD_SIDECAR: Final = "pd-sidecar"


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 after a drain, 1 if the worker cannot be registered, 2 for wrong arguments."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    # aiohttp takes 0.3 s to import: --help does not wait for it
    if given[:1] == [_PD_SIDECAR]:
        pd_options = pd_flags.build_parser().parse_args(given[1:])
        from registry.disaggregation.process import serve as serve_pd_sidecar

        return _run(serve_pd_sidecar(pd_options), pd_options.log_format, _PD_SIDECAR)
    if given and not given[0].startswith("-"):
        problem = f"there is no command {quoted(given[0])}; there is {_PD_SIDECAR}, without a command it registers a server"
        return command_line.print_error(
            f"{problem}; see {command_line.program('registry')} --help", command_line.WRONG_INPUT
        )
    options = _registration_parser().parse_args(given)
    from registry.sidecar.sidecar import serve

    return _run(serve(options), options.log_format, "registry")


def _run(serving: Coroutine[Any, Any, None], log_format: str, name: str) -> int:
    import asyncio
    import logging

    from adsum.logs import form_of, write_log
    from adsum.serving.sockets import raise_descriptor_limit

    write_log(logging.INFO, form_of(log_format, f"%(asctime)s {name}: %(message)s"))
    logging.getLogger("watchfiles").setLevel(logging.WARNING)
    raise_descriptor_limit()
    try:
        asyncio.run(serving)
    except KeyboardInterrupt:
        return command_line.INTERRUPTED
    except (AdsumError, ValueError, OSError) as error:
        return command_line.print_error(error)
    return command_line.SUCCEEDED


def build_parser() -> argparse.ArgumentParser:
    """The flags, and the command with its own; shell completion reads this parser."""
    return command_line.with_commands(_registration_parser(), {_PD_SIDECAR: pd_flags.build_parser()})


def _registration_parser() -> argparse.ArgumentParser:
    parser = command_line.Parser(
        prog=command_line.program("registry"),
        description="Register a model server that is not ours: follow its health, publish its metadata, until "
        "SIGTERM. Readers of the metadata need the bearer token in $ADSUM_TOKEN, if there is one. Another sidecar, in front of a "
        f"decode worker: {command_line.program('registry')} {_PD_SIDECAR} --help.",
    )
    parser.add_argument("--version", action=command_line.ShowVersion)
    command_line.add_log_format(parser)
    _add_identity_flags(parser)
    _add_server_flags(parser)
    where = parser.add_argument_group("where")
    add = where.add_argument
    add(
        "--discovery",
        metavar="URL",
        help="file:///path, ..., or a scheme of an installed package; default $ADSUM_DISCOVERY",
    )
    add("--address", help="how others reach this machine; default: the server's, if not loopback")
    add("--port", type=int, default=0, help="where /metadata is served; default: any free one")
    return parser


def _add_identity_flags(parser: argparse.ArgumentParser) -> None:
    who = parser.add_argument_group("who")
    add = who.add_argument
    add("--namespace", required=True, help="a name of your choice, that of the readers too")
    add("--component", required=True, help="workers with the same two names serve together")
    add("--instance-id", metavar="ID", help="made up without it")
    add(
        "--label",
        action="append",
        default=[],
        type=_label,
        metavar="KEY=VALUE",
        dest="labels",
        help="of the worker, for readers; repeatable",
    )


def _add_server_flags(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what is followed")
    add = what.add_argument
    add("--server", required=True, type=_server, metavar="URL", help="such as http://127.0.0.1:8000")
    add("--health-path", default="/health", metavar="PATH", help="2xx means ready (default: /health)")
    add(
        "--models-path",
        default="/v1/models",
        metavar="PATH",
        help="'' for a server without (default: /v1/models)",
    )
    add("--metadata-file", type=Path, metavar="FILE", help="a JSON object; read again when changed")
    add("--engine", type=_engine, metavar="NAME", help=f"whose metrics it has: {', '.join(ENGINES)}")
    add("--interval", type=_seconds, default=1.0, metavar="TIME", help="such as 500ms (default: 1s)")
    add(
        "--drain-timeout",
        type=_seconds,
        default=30.0,
        metavar="TIME",
        help="after SIGTERM, how long the server may go on serving (default: 30s)",
    )


def _server(text: str) -> "URL":
    from yarl import URL

    try:
        url = URL(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a URL: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise argparse.ArgumentTypeError(f"{text!r} is not a server's URL; expected http://host:port")
    return url


def _engine(text: str) -> str:
    if text not in ENGINES:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no engine that the picker knows; expected one of {', '.join(ENGINES)}; one that its "
            'configuration adds goes into --metadata-file: {"transport": {"http": {"engine": ...}}}'
        )
    return text


def _seconds(text: str) -> float:
    """A duration in seconds; text without a unit counts as seconds."""
    try:
        seconds = parse_duration(text if text[-1:].isalpha() else f"{text}s")
    except ValueError:
        seconds = 0.0
    if seconds == 0:
        raise argparse.ArgumentTypeError(
            f"{quoted(text)} is not a time; expected 1s, 500ms or a number of seconds"
        )
    return seconds


def _label(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not a label; expected KEY=VALUE")
    return key, value


if __name__ == "__main__":
    sys.exit(main())
