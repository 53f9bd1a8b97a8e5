"""Warns of workers that cannot be reached or resolved.

A registered worker is no endpoint without its metadata. A listed one stays an endpoint: somebody else vouches for it.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

logger = logging.getLogger(__name__)

_CHECK_INTERVAL: Final = 1.0
"""Seconds between two checks, and the time that a new worker has to answer."""
_MAX_NAMED: Final = 10
"""Warnings of one check: if the whole pool is cut off, the log must not fill up."""


class Consequence(Enum):
    """The consequence for requests, as log lines: one for a worker, one for those that are not named."""

    NO_REQUESTS = (
        "%s gets no requests: %s",
        "%d more get no requests; adsum discovery explain names them",
    )
    NO_DOCUMENT = (
        "%s has no metadata document, and stays an endpoint because it is listed: %s",
        "%d more have no metadata document; adsum discovery explain names them",
    )


class MissingWorkers:
    """Warns of each missing worker once for each reason. `missing`: returns the reasons by instance id."""

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
        """Check repeatedly until cancelled. Workers that are missing at the start have had their time already."""
        self._missing_before = set(self._missing())
        while True:
            self.check()
            await asyncio.sleep(interval)

    def check(self) -> None:
        """Warn of the workers that were missing at the last check too."""
        missing = self._missing()
        late = {i: reason for i, reason in missing.items() if i in self._missing_before}
        new = [i for i in sorted(late) if self._warned.get(i) != late[i]]
        for instance_id in new[:_MAX_NAMED]:
            logger.warning(self._one, instance_id, late[instance_id])
        if len(new) > _MAX_NAMED:
            logger.warning(self._others, len(new) - _MAX_NAMED)
        self._warned, self._missing_before = late, set(missing)
