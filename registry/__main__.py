"""`python -m registry`: registers a model server not written in Python, or not ours (vLLM, SGLang, ...), from beside it."""

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
from yarl import URL

import registry
from discovery.errors import AdsumError
from discovery.instance import ENGINES
from registry.sidecar.model_server import DocumentFile
from registry.sidecar.sidecar import FollowedServer, Sidecar
from runtime.addresses import authority
from runtime.command_line import INTERRUPTED, SUCCEEDED, Parser, ShowVersion, complain, program
from runtime.durations import parse_duration
from runtime.quoting import quoted
from runtime.serving.descriptors import raise_limit
from runtime.signals import stop_signals, until_signalled

log = logging.getLogger("registry")


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 left as asked, 1 the worker cannot be registered, 2 the arguments are wrong."""
    options = build_parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s registry: %(message)s", stream=sys.stderr)
    logging.getLogger("watchfiles").setLevel(logging.WARNING)
    raise_limit()
    try:
        asyncio.run(_run(options))
    except KeyboardInterrupt:
        return INTERRUPTED
    except (AdsumError, ValueError, OSError) as error:
        return complain(error)
    return SUCCEEDED


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=program("registry"),
        description="Register a model server that is not ours: follow its health, publish its metadata, until "
        "SIGTERM. Readers of the metadata need the bearer token in $ADSUM_TOKEN, if there is one.",
    )
    parser.add_argument("--version", action=ShowVersion)
    who = parser.add_argument_group("who")
    who.add_argument("--namespace", required=True)
    who.add_argument("--component", required=True)
    who.add_argument("--instance-id", metavar="ID", help="made up without it")
    who.add_argument("--label", action="append", default=[], type=_label, metavar="KEY=VALUE", dest="labels")
    what = parser.add_argument_group("what is followed")
    what.add_argument("--server", required=True, type=_server, metavar="URL", help="http://127.0.0.1:8000")
    what.add_argument("--health-path", default="/health", metavar="PATH", help="2xx means ready")
    what.add_argument("--models-path", default="/v1/models", metavar="PATH", help="'' for a server without")
    what.add_argument(
        "--metadata-file", type=Path, metavar="FILE", help="a JSON object; read again when changed"
    )
    what.add_argument(
        "--engine", type=_engine, metavar="NAME", help=f"whose metrics it has: {', '.join(ENGINES)}"
    )
    what.add_argument("--interval", type=_seconds, default=1.0, metavar="TIME", help="1s, 500ms")
    what.add_argument(
        "--drain-timeout",
        type=_seconds,
        default=30.0,
        metavar="TIME",
        help="after SIGTERM, how long the server may go on serving (30s)",
    )
    where = parser.add_argument_group("where")
    where.add_argument(
        "--discovery",
        metavar="URL",
        help="file:///path, ..., or a scheme of an installed package; default $ADSUM_DISCOVERY",
    )
    where.add_argument(
        "--address", help="how others reach this machine; default: the server's, if not loopback"
    )
    where.add_argument("--port", type=int, default=0, help="where /metadata is served; default: any free one")
    return parser


async def _run(options: argparse.Namespace) -> None:
    with stop_signals() as signals:
        file = None if options.metadata_file is None else DocumentFile(options.metadata_file)
        if file is not None:
            file.refresh()
        opened = registry.open(
            options.discovery,
            address=options.address or _own_address(options.server),
            port=options.port,
            instance_id=options.instance_id,
            labels=dict(options.labels),
            token=os.environ.get("ADSUM_TOKEN") or None,
        )
        async with (
            AsyncExitStack() as registration,
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), trust_env=False) as session,
        ):
            registering = opened.register_instance(options.namespace, options.component)
            # an id that somebody else held may take seconds to be free
            handle = await until_signalled(signals, registration.enter_async_context(registering))
            if handle is None:
                log.info("told to stop before it was registered")
                return
            instance = handle.instance
            at = authority(instance.address, instance.port)
            log.info("%s/%s %s at %s", instance.namespace, instance.component, instance.id, at)
            sidecar = Sidecar(_followed(options), handle, session, file)
            await until_signalled(signals, sidecar.follow())
            await until_signalled(signals, sidecar.drain())  # the second signal cuts it short


def _followed(options: argparse.Namespace) -> FollowedServer:
    return FollowedServer(
        server=options.server,
        health_path=options.health_path,
        models_path=options.models_path or None,
        engine=options.engine,
        interval=options.interval,
        drain_timeout=options.drain_timeout,
    )


def _own_address(server: URL) -> str | None:
    return None if server.host in ("127.0.0.1", "::1", "localhost") else server.host


def _server(text: str) -> URL:
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
    """A duration; a bare number is in seconds."""
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
