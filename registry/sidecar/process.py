"""Runs the sidecar process: registers, follows the server until a signal, drains until a second one."""

import argparse
import asyncio
import logging
import os
from contextlib import AsyncExitStack

import aiohttp
from yarl import URL

from adsum.addresses import authority
from adsum.command_line import INTERRUPTED, SUCCEEDED, print_error
from adsum.logs import form_of, write_log
from adsum.serving.sockets import raise_descriptor_limit
from adsum.signals import stop_signals, until_signalled
from discovery.errors import AdsumError
from registry.opening import open
from registry.sidecar.model_server import MetadataFile
from registry.sidecar.sidecar import FollowedServer, Sidecar

log = logging.getLogger("registry")


def run(options: argparse.Namespace) -> int:
    """Returns the exit code: 0 after a drain, 1 if the worker cannot be registered, 2 for a wrong argument or file."""
    write_log(logging.INFO, form_of(options.log_format, "%(asctime)s registry: %(message)s"))
    logging.getLogger("watchfiles").setLevel(logging.WARNING)
    raise_descriptor_limit()
    try:
        asyncio.run(_run(options))
    except KeyboardInterrupt:
        return INTERRUPTED
    except (AdsumError, ValueError, OSError) as error:
        return print_error(error)
    return SUCCEEDED


async def _run(options: argparse.Namespace) -> None:
    with stop_signals() as signals:
        file = None if options.metadata_file is None else MetadataFile(options.metadata_file)
        if file is not None:
            file.refresh()
        opened = open(
            options.discovery,
            address=options.address or _own_address(options.server),
            port=options.port,
            instance_id=options.instance_id,
            labels=dict(options.labels),
            token=os.environ.get("ADSUM_TOKEN") or None,
        )
        async with (
            AsyncExitStack() as stack,
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), trust_env=False) as session,
        ):
            registration = opened.register_instance(options.namespace, options.component)
            # if another host's record holds the id, this takes seconds
            handle = await until_signalled(signals, stack.enter_async_context(registration))
            if handle is None:
                log.info("stopped by a signal before it was registered")
                return
            instance = handle.instance
            shown_address = authority(instance.address, instance.port)
            log.info("%s/%s %s at %s", instance.namespace, instance.component, instance.id, shown_address)
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
