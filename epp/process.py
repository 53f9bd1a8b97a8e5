"""Runs a picker process: logging, start, signals, drain and exit code."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
from collections.abc import Sequence
from typing import Protocol

from adsum.command_line import FAILED, INTERRUPTED, SUCCEEDED, WRONG_INPUT, print_error
from adsum.config.problems import ConfigError
from adsum.logs import print_ready, write_log
from adsum.serving.sockets import raise_descriptor_limit
from adsum.signals import stop_signals, until_signalled
from discovery.errors import AdsumError
from epp.config import go_flags
from epp.config.log_flags import LogSettings
from epp.config.settings import Settings, TransportKind
from epp.config.sibling_processes import Siblings

log = logging.getLogger("epp")

_GC_THRESHOLD = 10_000
"""The first threshold of the garbage collector, for new objects. A high one is safe: a request leaves no cycles."""


def run(
    settings: Settings, log_settings: LogSettings, ignored: Sequence[str], siblings: Siblings | None = None
) -> int:
    """Returns the exit code; `ignored`: given flags without effect. `siblings`: this is one of several processes."""
    # until the loop handles it, so that none ends a picker that starts
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    raise_descriptor_limit()
    write_log(log_settings.level, log_settings.form())
    for library in ("grpc", "watchfiles", "asyncio", "hpack"):
        logging.getLogger(library).setLevel(max(logging.WARNING, log_settings.level))
    if ignored:
        log.warning("flags without effect: %s", ", ".join(go_flags.explain(name) for name in ignored))
    for remark in settings.tls.remarks:
        log.warning("%s", remark)
    try:
        return asyncio.run(_run_picker(settings, siblings))
    except KeyboardInterrupt:
        return INTERRUPTED


async def _run_picker(settings: Settings, siblings: Siblings | None) -> int:
    # what fails is said once, by us; read when grpc is imported
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # grpc has no option for it, only this variable
    if settings.transport is TransportKind.GRPC and settings.tls.ciphers:
        os.environ["GRPC_SSL_CIPHER_SUITES"] = ":".join(settings.tls.ciphers)
    from epp.ext_proc import exchange
    from epp.server import FAILURES, INPUT_ERRORS, PickerServer

    picker = PickerServer(settings, siblings=siblings)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, picker.reread_config)
    async with contextlib.AsyncExitStack() as stack:
        try:
            server = await stack.enter_async_context(picker)
        except ConfigError as error:
            return print_error(error.with_lines, WRONG_INPUT)
        except INPUT_ERRORS as error:
            return print_error(error, WRONG_INPUT)
        except FAILURES as error:
            return print_error(error)
        gc.collect()
        gc.freeze()  # objects of the start live as long as the process: no collection traverses them again
        gc.set_threshold(_GC_THRESHOLD)
        log.info("the hot path is %s", "interpreted" if exchange.__file__.endswith(".py") else "compiled")
        return await serve(server)


class RunningPicker(Protocol):
    @property
    def ready_line(self) -> str: ...

    async def wait_for_failure(self) -> None:
        """Returns or raises when a task ends that must not."""

    async def drain(self) -> None: ...


async def serve(server: RunningPicker) -> int:
    """Print the ready line, serve until a signal, then drain; a second signal ends the process at once.

    Returns the exit code. An AdsumError is one line on stderr; any other exception is a bug and passes.
    """
    try:
        with stop_signals() as signals:
            # bounded: our own ready line
            print_ready(server.ready_line.split()[1:])
            await until_signalled(signals, server.wait_for_failure())
        await server.drain()
    except AdsumError as error:
        return print_error(error, FAILED)
    return SUCCEEDED
