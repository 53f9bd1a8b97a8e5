"""Runs `discovery serve`: from its flags to its last signal."""

import argparse
import asyncio
import logging
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from adsum.addresses import split_authority
from adsum.logs import form_of, print_ready, write_log
from adsum.serving.pages import ConnectionLimits, served_at
from adsum.signals import stop_signals, until_signalled
from adsum.tasks import first_of
from adsum.web.access import Access, token_file
from adsum.web.debug_port import DebugPort
from discovery.extension import SOURCES
from discovery.opening import display_url, open
from discovery.source import component_key
from discovery.web.component_follower import ComponentFollower
from discovery.web.pages import GUARDED, ComponentPages

_LIMITS = ConnectionLimits(shutdown_timeout=1.0)


async def serve(options: argparse.Namespace) -> int:
    """Returns the exit code. Raises AdsumError, ValueError and OSError."""
    write_log(logging.INFO, form_of(options.log_format, "%(asctime)s serve: %(message)s"))
    logging.getLogger("watchfiles").setLevel(logging.WARNING)
    key = component_key(options.namespace, options.component)
    with stop_signals() as signals:
        async with AsyncExitStack() as stack:
            service = await stack.enter_async_context(
                open(options.discovery, token=os.environ.get("ADSUM_TOKEN") or None)
            )
            follower = ComponentFollower(service, key, without_secrets(display_url(options.discovery)))
            ready = await _open_ports(stack, options, ComponentPages(follower))
            await until_signalled(signals, first_of(follower.run(), _say_ready(ready)))
    return 0


def without_secrets(url: str) -> str:
    """The part of the URL that the page may show: a scheme of an installed package may hold a password or a token."""
    scheme, _, rest = url.partition("://")
    built_in = scheme.lower() in SOURCES.built_in
    hosts, slash, path = (rest if built_in else rest.partition("?")[0]).partition("/")
    return f"{scheme}://{hosts.rpartition('@')[2]}{slash}{path}"


async def _open_ports(
    stack: AsyncExitStack, options: argparse.Namespace, pages: ComponentPages
) -> Sequence[str]:
    """Returns the words of the ready line."""
    path: Path | None = options.debug_token_file
    token = None if path is None else token_file(path)
    app = pages.application(Access(GUARDED, token))
    host, port = split_authority(options.listen, min_port=0, expected="ADDRESS:PORT")
    opened = served_at(host, port, app, "the page", "--listen", _LIMITS)
    ready = [f"http={await stack.enter_async_context(opened)}"]
    if options.debug_address is not None:
        debug = DebugPort(address=options.debug_address, guarded=GUARDED, token=token, limits=_LIMITS)
        ready.append(f"debug={await stack.enter_async_context(debug.served(pages.application))}")
    return ready


async def _say_ready(words: Sequence[str]) -> None:
    print_ready(words)
    await asyncio.Event().wait()
