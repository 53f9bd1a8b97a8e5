"""The life of a picker process: from its flags to its last signal."""

import asyncio
import contextlib
import gc
import logging
import os
from collections.abc import Sequence
from typing import Protocol

from discovery.errors import AdsumError
from epp.config import go_flags
from epp.config.settings import Settings
from runtime.command_line import FAILED, INTERRUPTED, SUCCEEDED, WRONG_INPUT, print_error
from runtime.serving.descriptors import raise_descriptor_limit
from runtime.signals import stop_signals, until_signalled

log = logging.getLogger("epp")

_COLLECT_AFTER = 10_000
"""Objects more than before after which garbage is looked for: a request leaves no cycles behind."""


def run(settings: Settings, verbosity: int, ignored: Sequence[str]) -> int:
    """The exit code; `ignored`: flags that were given and change nothing."""
    raise_descriptor_limit()
    level = logging.WARNING if verbosity <= 0 else logging.INFO if verbosity < 4 else logging.DEBUG
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for chatty in ("grpc", "watchfiles", "asyncio", "hpack"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    if ignored:
        log.warning("flags without effect here: %s", ", ".join(go_flags.said(name) for name in ignored))
    try:
        return asyncio.run(_pick(settings))
    except KeyboardInterrupt:
        return INTERRUPTED


async def _pick(settings: Settings) -> int:
    os.environ.setdefault(
        "GRPC_VERBOSITY", "NONE"
    )  # what fails is said once, by us; read when grpc is imported
    from epp.ext_proc import exchange
    from epp.server import FAILURES, INPUT_ERRORS, PickerServer

    async with contextlib.AsyncExitStack() as stack:
        try:
            server = await stack.enter_async_context(PickerServer(settings))
        except INPUT_ERRORS as error:
            return print_error(error, WRONG_INPUT)
        except FAILURES as error:
            return print_error(error)
        gc.collect()
        gc.freeze()  # what is there by now stays: no collection need look at it
        gc.set_threshold(_COLLECT_AFTER)
        log.info("the hot path is %s", "interpreted" if exchange.__file__.endswith(".py") else "compiled")
        return await serve(server)


class RunningPicker(Protocol):
    """A picker that is open."""

    @property
    def ready_line(self) -> str: ...

    async def wait(self) -> None:
        """Until something fails; raises what failed."""

    async def drain(self) -> None: ...


async def serve(server: RunningPicker) -> int:
    """Say ready, serve until a signal, then drain; a second signal ends the process at once. The exit code.

    What discovery says in the end is one line; whatever else fails now is a fault, and raised as it is.
    """
    try:
        with stop_signals() as signals:
            print(server.ready_line, flush=True)
            await until_signalled(signals, server.wait())
        await server.drain()
    except AdsumError as error:
        return print_error(error, FAILED)
    return SUCCEEDED
