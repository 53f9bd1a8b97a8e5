"""Starts the parts of `adsum serve` in order, keeps them running, says what is waited for, and drains them in order."""

import argparse
import asyncio
import logging
import sys
import tempfile
from pathlib import Path
from typing import Final

from adsum.command_line import FAILED, print_error
from adsum.errors import AdsumError
from adsum.logs import form_of, print_ready, write_log
from adsum.serving.sockets import listening_sockets
from adsum.tasks import cancel_and_wait
from discovery.opening import default_url
from epp.serve.group import supervise
from epp.serve.part import EnvoyPart, Part, PartError
from epp.serve.plan import ENVOY_OPTIONS, Plan

log = logging.getLogger("serve")

_POLL: Final = 0.2
_FIRST_WORD: Final = 3.0
"""Seconds without a worker until the log says so; each time after twice as many."""
_LAST_WORD: Final = 60.0
_LEAVE: Final = 10.0
"""Seconds more than --drain-timeout until a part that still runs is killed."""


def run(given: argparse.Namespace, envoy: str) -> int:
    """Returns the exit code; `envoy`: the program."""
    write_log(logging.INFO, form_of(given.log_format, "serve      %(asctime)s %(levelname)s %(message)s"))
    plan = Plan.of(given)
    try:
        with tempfile.TemporaryDirectory(prefix="adsum-serve-") as folder:
            return asyncio.run(
                supervise(PartGroup(given, plan, _envoy_command(envoy, plan, Path(folder)), Path(folder)))
            )
    except PartError as error:
        return print_error(error, error.code)
    except (AdsumError, OSError) as error:
        return print_error(error, FAILED)


class PartGroup:
    """The parts, in the order in which they start."""

    def __init__(self, given: argparse.Namespace, plan: Plan, envoy: list[str], folder: Path) -> None:
        self._given, self._plan = given, plan
        python = (sys.executable, "-m")
        self._picker = Part("picker", [*python, "epp", *plan.picker])
        self._envoy = EnvoyPart("envoy", envoy, folder)
        self._dispatcher = (
            None if plan.dispatcher is None else Part("dispatcher", [*python, "dispatcher", *plan.dispatcher])
        )

    async def serve(self) -> None:
        check_free(self._plan)
        log.info("%s", self._plan.outcomes)
        parts = [part for part in (self._picker, self._envoy, self._dispatcher) if part is not None]
        for part in parts:
            await part.start()
        keeping = [asyncio.create_task(part.keep_running(), name=part.name) for part in parts]
        told = asyncio.create_task(self._tell_when_ready(), name="progress")
        try:
            done, _ = await asyncio.wait(keeping, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await cancel_and_wait(told, *keeping)

    async def drain(self) -> bool:
        """First who sends, then Envoy, then the picker, which requests under way still ask. True once all have ended."""
        log.info(
            "draining: no more requests are accepted, those under way have %g s", self._given.drain_timeout
        )
        patience = self._given.drain_timeout + _LEAVE
        if self._dispatcher is not None:
            await self._dispatcher.terminate(patience)
        await self._envoy.drain(self._given.drain_timeout)
        await self._picker.terminate(patience)
        return True

    async def kill(self) -> None:
        for part in (self._envoy, self._dispatcher, self._picker):
            if part is not None:
                await part.kill()

    async def _tell_when_ready(self) -> None:
        openai, page, _ = self._plan.ports
        waited, word_at = 0.0, _FIRST_WORD
        while not await self._envoy.has_workers():
            if waited >= word_at:
                log.info("%s (%.0f s)", self._awaited(), waited)
                word_at = waited + min(waited, _LAST_WORD)
            await asyncio.sleep(_POLL)
            waited += _POLL
        print_ready([f"openai={self._plan.url(openai)}/v1", f"page={self._plan.url(page)}"])

    def _awaited(self) -> str:
        if self._given.endpoint:
            where = f"no worker answers at {', '.join(self._given.endpoint)}"
            return f"waiting: {where}; start it there, or name the address that it listens on with --endpoint"
        source = self._given.discovery or default_url()
        key = f"{self._given.namespace or 'default'} {self._given.component or 'default'}"
        return f"waiting: no worker is in {source}; `adsum discovery explain {key}` says who is there, and why not"


def _envoy_command(envoy: str, plan: Plan, folder: Path) -> list[str]:
    config = folder / "envoy.yaml"
    config.write_text(plan.bootstrap())
    return [envoy, "--config-path", str(config), *ENVOY_OPTIONS]


def check_free(plan: Plan) -> None:
    """Raises ListenError for a port that another process holds, before anything is started."""
    hosts = (plan.host, plan.host, "127.0.0.1")
    for host, port in zip(hosts, plan.ports, strict=True):
        for one in listening_sockets(host, port, "--port"):
            one.close()
