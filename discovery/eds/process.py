"""Runs `discovery eds`: the feed, and the file and the server that it publishes to."""

import argparse
import asyncio
import logging
import os
from contextlib import AsyncExitStack

from discovery.eds.assignment_file import AssignmentFile
from discovery.eds.feed import AssignmentFeed, FeedSettings, Publish
from discovery.opening import open
from discovery.source import component_key
from runtime.addresses import split_authority
from runtime.command_line import not_installed
from runtime.errors import AdsumError
from runtime.log_form import form_of, print_ready, write_log
from runtime.signals import stop_signals, until_signalled
from runtime.tasks import first_of


class MissingLibraryError(AdsumError):
    """`--listen` without the libraries of the extra."""


async def serve(options: argparse.Namespace) -> int:
    """Returns the exit code. Raises AdsumError, ValueError and OSError."""
    write_log(logging.INFO, form_of(options.log_format, "%(asctime)s eds: %(message)s"))
    logging.getLogger("watchfiles").setLevel(logging.WARNING)
    settings = _settings(options)
    publishers: list[Publish] = []
    where: list[str] = []
    with stop_signals() as signals:
        async with AsyncExitStack() as stack:
            service = await stack.enter_async_context(
                open(options.discovery, token=os.environ.get("ADSUM_TOKEN") or None)
            )
            if options.out is not None:
                publishers.append(AssignmentFile(options.out, options.cluster_name).publish)
                where.append(f"file={options.out}")
            if options.listen is not None and not options.once:
                address = await _listen(stack, options, publishers)
                where.append(f"grpc={address}")
            feed = AssignmentFeed(service, settings, publishers)
            work = feed.once() if options.once else _run(feed, where)
            await until_signalled(signals, work)
    return 0


def _settings(options: argparse.Namespace) -> FeedSettings:
    if options.out is None and options.listen is None:
        raise ValueError(
            "eds needs --out FILE, --listen ADDRESS, or both: where do Envoys read the endpoints?"
        )
    if options.out is not None and not options.out.parent.is_dir():
        raise ValueError(f"--out {options.out}: {options.out.parent} is not a directory; create it first")
    if options.once and options.out is None:
        raise ValueError("--once needs --out FILE: it writes the file and ends")
    if options.out is not None and options.out.suffix in (".pb", ".pb_text"):
        raise ValueError(
            f"--out {options.out}: Envoy reads {options.out.suffix} as protobuf; expected .json or .yaml"
        )
    if not options.interval >= 0:
        raise ValueError(f"--interval {options.interval:g}: expected seconds, 0 or more")
    return FeedSettings(
        component_key(options.namespace, options.component), options.interval, options.serving_port_name
    )


async def _listen(stack: AsyncExitStack, options: argparse.Namespace, publishers: list[Publish]) -> str:
    host, port = split_authority(options.listen, min_port=0, expected="ADDRESS:PORT")
    try:
        from discovery.eds.server import EdsServer  # grpc takes 100 ms and 20 MB, and a file needs neither
    except ModuleNotFoundError as missing:
        raise MissingLibraryError(not_installed(missing, "eds")) from missing
    server = await stack.enter_async_context(EdsServer(host, port, options.cluster_name))
    publishers.append(server.publish)
    return server.address


async def _run(feed: AssignmentFeed, where: list[str]) -> None:
    async def say_ready() -> None:
        await feed.first.wait()
        print_ready(where)
        await asyncio.Event().wait()

    await first_of(feed.run(), say_ready())
