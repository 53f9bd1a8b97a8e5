"""The configuration file as it is in force while requests are under way: read again when it changes, on SIGHUP, and taken
over as a whole or not at all.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, Never

from adsum.changing_files import FileChanges, check_no_pipe
from adsum.config.problems import ConfigError
from adsum.entry_points import in_one_line
from epp.config.validate import read_text

log = logging.getLogger(__name__)

SETTLE: Final = 0.2
"""Seconds for which a file must stay the same before it is read: an editor may not have written all of it."""

Apply = Callable[[], None]
Prepare = Callable[[str], Awaitable[Apply]]
"""Builds what a text describes, without effect, and returns what applies it; raises ConfigError, another ValueError
or OSError.
"""


class LiveConfig:
    """`text`: in force now. `settle`: seconds for which a changed file must stay the same."""

    def __init__(self, path: Path, text: str, settle: float = SETTLE) -> None:
        self._path = path
        self._settle = settle
        self._text = text
        self._changes = FileChanges(path)
        self._on_request = False
        self.problem = ""
        """Why the file, as it is now, is not in force; empty if it is."""
        self._logged_problem = ""
        self._refused: tuple[str, str] | None = None
        """The last text that was refused for what it says, and why: it is not parsed again."""
        self.in_force_since = time.time()
        """Seconds since the epoch."""

    def trigger(self) -> None:
        """Read the file now, and log the outcome even if it is the same as before: for SIGHUP."""
        self._on_request = True
        self._changes.trigger()

    async def run(self, prepare: Prepare) -> Never:
        """Follow the file until cancelled."""
        await self._changes.run(partial(self._read, prepare))

    async def _read(self, prepare: Prepare) -> None:
        """Apply the file if it changed; keep the old configuration, and log why, if it cannot be used."""
        on_request, self._on_request = self._on_request, False
        if on_request:
            self._logged_problem, self._refused = "", None
        try:
            text = await self._settled_text()
        except ConfigError as error:
            self._refuse(error.one_line)
            return
        if text == self._text:
            self._keep(on_request)
        elif self._refused is not None and text == self._refused[0]:
            self._refuse(self._refused[1])
        else:
            await self._take_over(text, prepare)

    async def _take_over(self, text: str, prepare: Prepare) -> None:
        self._refused, lasting = None, True
        try:
            if not text.strip():
                raise ConfigError("", "is empty; expected an EndpointPickerConfig")
            (await prepare(text))()
        except (ValueError, OSError) as error:
            # a file that the text names may be readable the next time
            lasting = not isinstance(error, OSError) and not isinstance(error.__cause__, OSError)
            self._refuse(error.one_line if isinstance(error, ConfigError) else str(error))
        except Exception as error:  # noqa: BLE001  # a plugin of an installed package may raise anything
            self._refuse(in_one_line(error))
        else:
            self._text, self.in_force_since = text, time.time()
            self.problem = self._logged_problem = ""
            log.info("%s is in force", self._path)
        if self.problem and lasting:
            self._refused = text, self.problem

    def describe(self) -> dict[str, Any]:
        """For /status."""
        return {
            "file": str(self._path),
            "in_force_since": self.in_force_since,
            "problem": self.problem or None,
        }

    async def _settled_text(self) -> str:
        """The text, once it stays the same; raises ConfigError."""
        text = await asyncio.to_thread(_read_again, self._path)
        while text != self._text and (self._refused is None or text != self._refused[0]):
            await asyncio.sleep(self._settle)
            before, text = text, await asyncio.to_thread(_read_again, self._path)
            if text == before:
                break
        return text

    def _keep(self, on_request: bool) -> None:
        if self.problem:
            log.info("%s is again what is in force", self._path)
        elif on_request:
            log.info("%s is unchanged, and in force", self._path)
        self.problem = self._logged_problem = ""

    def _refuse(self, problem: str) -> None:
        if problem != self._logged_problem:
            log.error("%s is not in force, the old configuration stays: %s", self._path, problem)
        self.problem = self._logged_problem = problem


def _read_again(path: Path) -> str:
    check_no_pipe(path)
    return read_text(path)
