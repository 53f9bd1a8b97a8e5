"""Says of whom nothing can be learnt: who is no endpoint for it (a worker that does not answer, a name that does not
resolve), and who is one all the same, because it is listed.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

logger = logging.getLogger(__name__)

_CHECK_INTERVAL: Final = 1.0
"""Seconds between two looks, and what somebody new is given to answer."""
_MAX_NAMED: Final = 10
"""Warnings of one look; a pool that is cut off must not fill the log."""


class Consequence(Enum):
    """What it means for requests: a line for one, a line for all the others."""

    NO_REQUESTS = (
        "%s gets no requests: %s",
        "%d more get no requests; python -m discovery explain names them",
    )
    NO_DOCUMENT = (
        "%s has no metadata document, and stays an endpoint because it is listed: %s",
        "%d more have no metadata document; python -m discovery explain names them",
    )


class MissingWorkers:
    """Warns of each of them once per reason. `missing` gives the reasons by instance id."""

    def __init__(
        self,
        missing: Callable[[], Mapping[str, str]],
        consequence: Consequence = Consequence.NO_REQUESTS,
    ) -> None:
        self._missing = missing
        self._one, self._others = consequence.value
        self._missing_before: set[str] = set()
        self._warned: dict[str, str] = {}

    async def run(self, interval: float = _CHECK_INTERVAL) -> None:
        """Look again and again, until cancelled. Who is missing at first has been waited for already."""
        self._missing_before = set(self._missing())
        while True:
            self.check()
            await asyncio.sleep(interval)

    def check(self) -> None:
        """Warn of those who were missing at the last look too."""
        missing = self._missing()
        late = {i: reason for i, reason in missing.items() if i in self._missing_before}
        new = [i for i in sorted(late) if self._warned.get(i) != late[i]]
        for instance_id in new[:_MAX_NAMED]:
            logger.warning(self._one, instance_id, late[instance_id])
        if len(new) > _MAX_NAMED:
            logger.warning(self._others, len(new) - _MAX_NAMED)
        self._warned, self._missing_before = late, set(missing)
