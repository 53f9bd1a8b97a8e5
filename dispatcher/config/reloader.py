"""Reloads the configuration file when it changes, and on SIGHUP."""

import asyncio
import logging
import os
from pathlib import Path
from typing import Protocol

from adsum.changing_files import FileChanges, check_no_pipe, read_text
from adsum.config.problems import ConfigError
from adsum.entry_points import in_one_line
from dispatcher.broker.contract.queue import QueueError
from dispatcher.config.config_file import Config, read_config

_EXPECTED = "a YAML file that this user can read, see docs/dispatcher.md"

log = logging.getLogger(__name__)


def load(path: Path) -> Config:
    """Read the file; raises ConfigError, which names it."""
    return _parse(read_text(path, _EXPECTED), path)


def _parse(text: str, path: Path) -> Config:
    try:
        return read_config(text, os.environ)
    except ConfigError as error:
        raise error.in_file(path) from error


class Reconfigurable(Protocol):
    """Takes new configurations: the server."""

    async def reconfigure(self, config: Config) -> None:
        """Apply it; raises ConfigError and QueueError."""

    def set_config_in_force(self, in_force: bool) -> None:
        """Called after each read: whether the file was accepted."""


class ConfigReloader:
    """Passes valid new configurations to `server`; an invalid one is logged, and the old one stays in force."""

    def __init__(self, path: Path, current: Config, server: Reconfigurable) -> None:
        self._path = path
        self._current: Config | None = current
        """In force; None after a failure, because whatever comes next has to be applied then."""
        self._server = server
        self._changes = FileChanges(path)
        self._read: tuple[str, Config | ConfigError] | None = None
        """The last text and what it says: to parse a large file takes seconds."""
        self._last_error = ""

    def trigger(self) -> None:
        """Read the file now. For SIGHUP."""
        self._changes.trigger()

    async def run(self) -> None:
        """Run until cancelled."""
        await self._changes.run(self._reload)

    async def _reload(self) -> None:
        try:
            config = await asyncio.to_thread(self._load)
            if config != self._current:
                self._current = None
                await self._server.reconfigure(config)
                self._current = config
                log.info("%s is in force", self._path)
            self._last_error = ""
        except ConfigError as error:
            self._reject(error.one_line)
        except QueueError as error:
            self._reject(str(error))
        except Exception as error:  # noqa: BLE001  # a broker or a gate of an installed package may raise anything
            self._reject(in_one_line(error))
        self._server.set_config_in_force(not self._last_error)

    def _load(self) -> Config:
        """As `load`, for a file that may be read while it is as it was."""
        check_no_pipe(self._path)
        text = read_text(self._path, _EXPECTED)
        if self._read is None or self._read[0] != text:
            try:
                self._read = text, _parse(text, self._path)
            except ConfigError as error:
                self._read = text, error
        parsed = self._read[1]
        if isinstance(parsed, ConfigError):
            raise parsed.in_file(self._path)  # a copy: each raise of one error adds to its traceback
        return parsed

    def _reject(self, problem: str) -> None:
        if problem != self._last_error:
            log.error("the new configuration is rejected, the old one stays in force: %s", problem)
        self._last_error = problem
