"""`python -m epp`: the endpoint picker. `envoy-config`: the Envoy configuration that goes with it. `validate FILE`."""

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from discovery import AdsumError
from runtime.command_line import (
    FAILED,
    INTERRUPTED,
    SUCCEEDED,
    WRONG_INPUT,
    complain,
    not_installed,
    program,
    with_commands,
)
from runtime.serving.descriptors import raise_limit
from runtime.signals import stop_signals, until_signalled

if TYPE_CHECKING:
    from epp.config.settings import Settings

log = logging.getLogger("epp")

_COLLECT_AFTER = 10_000
"""Objects more than before after which garbage is looked for: a request leaves no cycles behind."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 after SIGTERM or SIGINT, 1 when something failed, 2 for bad input."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        return _run(given)
    except ModuleNotFoundError as missing:  # the picker's libraries are an extra
        return complain(not_installed(missing, "epp"), FAILED)


def build_parser() -> argparse.ArgumentParser:
    """All that the command line takes: the picker's flags, or a command and its own."""
    from epp.config import flags, validate
    from epp.envoy import flags as envoy_flags

    commands = {"envoy-config": envoy_flags.build_parser(), "validate": validate.build_parser()}
    return with_commands(flags.build_parser(), commands)


def _run(given: Sequence[str]) -> int:
    if given[:1] == ["envoy-config"]:
        return _envoy_config(given[1:])
    if given[:1] == ["validate"]:
        from epp.config.validate import validate

        return validate(given[1:])
    if given and not given[0].startswith("-"):
        said = f"there is no command {given[0]!r}; there are envoy-config and validate"
        return complain(
            f"{said}, without a command the picker starts; see {program('epp')} --help", WRONG_INPUT
        )
    from epp.config import flags, go_flags

    settings, verbosity, ignored = flags.parse(given)
    raise_limit()
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


def _envoy_config(given: Sequence[str]) -> int:
    from epp.envoy import flags as envoy_flags
    from epp.envoy.config import render

    sys.stdout.write(render(envoy_flags.parse(given)))
    return 0


async def _pick(settings: "Settings") -> int:
    os.environ.setdefault(
        "GRPC_VERBOSITY", "NONE"
    )  # what fails is said once, by us; read when grpc is imported
    from epp.ext_proc import exchange
    from epp.server import FAILURES, INPUT_ERRORS, PickerServer

    async with contextlib.AsyncExitStack() as stack:
        try:
            server = await stack.enter_async_context(PickerServer(settings))
        except INPUT_ERRORS as error:
            return complain(error, WRONG_INPUT)
        except FAILURES as error:
            return complain(error)
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
        return complain(error, FAILED)
    return SUCCEEDED


if __name__ == "__main__":
    sys.exit(main())
