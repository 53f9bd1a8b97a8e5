"""Reloads the configuration file when it changes, and on SIGHUP."""

import logging
import os
from pathlib import Path
from typing import Protocol

from dispatcher.broker.queue import QueueError
from dispatcher.config.config_file import Config, read_config
from runtime.config.file_changes import FileChanges, check_no_pipe
from runtime.config.problems import ConfigError
from runtime.os_reason import os_reason

_EXPECTED = "expected a YAML file that this user can read, see docs/dispatcher.md"

log = logging.getLogger(__name__)


def load(path: Path) -> Config:
    """Read the file; raises ConfigError, which names it."""
    try:
        return read_config(path.read_text(), os.environ)
    except OSError as error:
        raise ConfigError("", f"{path} cannot be read: {os_reason(error)}; {_EXPECTED}") from error
    except UnicodeDecodeError as error:
        raise ConfigError("", f"{path} cannot be read: it is not UTF-8; {_EXPECTED}") from error
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
        self._current = current
        self._server = server
        self._changes = FileChanges(path)
        self._last_error = ""

    def trigger(self) -> None:
        """Read the file now. For SIGHUP."""
        self._changes.trigger()

    async def run(self) -> None:
        """Run until cancelled."""
        await self._changes.run(self._reload)

    async def _reload(self) -> None:
        try:
            check_no_pipe(self._path)
            config = load(self._path)
            if config != self._current:
                await self._server.reconfigure(config)
                log.info("%s is in force", self._path)
            self._current = config
            self._last_error = ""
        except (ConfigError, QueueError) as error:
            message = error.one_line if isinstance(error, ConfigError) else str(error)
            if message != self._last_error:
                log.error("the new configuration is rejected, the old one stays in force: %s", message)
            self._last_error = message
        self._server.set_config_in_force(not self._last_error)
