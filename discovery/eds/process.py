"""Runs `discovery eds`: the feed, and the file and the server that it publishes to."""

import argparse
import asyncio
import logging
import os
from contextlib import AsyncExitStack

from adsum.addresses import is_loopback, split_authority
from adsum.command_line import not_installed
from adsum.errors import AdsumError
from adsum.logs import form_of, print_ready, write_log
from adsum.signals import stop_signals, until_signalled
from adsum.tasks import first_of
from discovery.eds.assignment_file import AssignmentFile
from discovery.eds.feed import AssignmentFeed, FeedSettings, Publish
from discovery.opening import open
from discovery.source import component_key

log = logging.getLogger("discovery.eds")


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
    if options.client_ca_file is not None and options.cert_path is None:
        raise ValueError("--client-ca-file needs --cert-path: certificates of clients are a part of TLS")
    if options.cert_path is not None and options.listen is None:
        raise ValueError("--cert-path needs --listen: a file is not served")
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
        # grpc takes 100 ms and 20 MB, and a file needs neither
        from discovery.eds.server import EdsServer, ServerTls
    except ModuleNotFoundError as missing:
        raise MissingLibraryError(not_installed(missing, "eds")) from missing
    tls = None if options.cert_path is None else ServerTls(options.cert_path, options.client_ca_file)
    server = await stack.enter_async_context(EdsServer(host, port, options.cluster_name, tls))
    if options.client_ca_file is None and not is_loopback(host):
        log.warning(
            "all endpoints are told to every client that reaches %s; restrict it with --cert-path and --client-ca-file, "
            "or a NetworkPolicy",
            server.address,
        )
    publishers.append(server.publish)
    return server.address


async def _run(feed: AssignmentFeed, where: list[str]) -> None:
    async def say_ready() -> None:
        await feed.first.wait()
        print_ready(where)
        await asyncio.Event().wait()

    await first_of(feed.run(), say_ready())
