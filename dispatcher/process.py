"""Runs a dispatcher process: logging, configuration, dry run, signals."""

import argparse
import asyncio
import contextlib
import gc
import logging
import signal
from collections.abc import Sequence

from adsum.command_line import FAILED, print_error
from adsum.config.problems import ConfigError
from adsum.logs import form_of, print_ready, write_log
from adsum.serving.sockets import raise_descriptor_limit
from adsum.signals import stop_signals, until_signalled
from adsum.tasks import first_of
from adsum.tracing.opening import Tracing
from dispatcher.cli.dry_run import dry_run
from dispatcher.config.reloader import ConfigReloader, load
from dispatcher.server import DispatcherServer

GC_THRESHOLD = 20_000
"""New objects that start a garbage collection. Requests make no reference cycles, so collections find little."""


async def serve(flags: argparse.Namespace) -> int:
    """Returns the exit code: 1 if a dry run cannot read a metric. Raises ConfigError, QueueError and OSError."""
    least = logging.ERROR if flags.dry_run else logging.WARNING  # a dry run prints what a meter would log
    level = (least, logging.INFO, logging.DEBUG)[min(2, flags.verbosity)]
    write_log(level, form_of(flags.log_format))
    for chatty in ("watchfiles", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    raise_descriptor_limit()
    config = load(flags.config)
    try:
        if flags.dry_run:
            return _dry_run_exit_code(await dry_run(config))
        async with contextlib.AsyncExitStack() as stack:
            tracing = Tracing("llm-d-async", "adsum.dispatcher")
            if flags.tracing:
                await stack.enter_async_context(tracing)
            server = await stack.enter_async_context(DispatcherServer(config, tracer=tracing.tracer))
            await serve_until_signalled(server, ConfigReloader(flags.config, config, server))
    except ConfigError as error:
        raise error.in_file(flags.config) from error
    return 0


def _dry_run_exit_code(unread: Sequence[str]) -> int:
    if not unread:
        return 0
    message = f"{len(unread)} metrics cannot be read" if len(unread) > 1 else "a metric cannot be read"
    return print_error(f"{message}, so the gate is closed or uses its fallback; {'; '.join(unread)}", FAILED)


async def serve_until_signalled(server: DispatcherServer, reloader: ConfigReloader) -> None:
    """Serve until SIGTERM or SIGINT, then drain. A second signal ends the process at once; SIGHUP reloads the file."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reloader.trigger)
    gc.collect()
    gc.freeze()  # the objects of the start-up live on: collections skip them
    gc.set_threshold(GC_THRESHOLD, *gc.get_threshold()[1:])
    with stop_signals() as signals:
        # bounded: our own ready line
        print_ready(server.ready_line.split()[1:])
        await until_signalled(signals, first_of(reloader.run(), server.wait_for_failure()))
    await server.drain()
