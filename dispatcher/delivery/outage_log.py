"""Logs a target that cannot be reached: one line when the outage lasts, one when it ends."""

import logging
import time
from collections.abc import Callable

LOG_AFTER = 1.0
"""Seconds without any answer until it is logged: a replica that restarts behind a load balancer takes less."""

log = logging.getLogger(__name__)


class OutageLog:
    """The outages of one target, shared by all queues that send to it. `after`: seconds until one is logged."""

    def __init__(
        self, target: str, after: float = LOG_AFTER, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._target = target
        self._after = after
        self._clock = clock
        self._since: float | None = None
        self._logged = False

    def unreachable(self, reason: str) -> None:
        """A request could not connect."""
        now = self._clock()
        if self._since is None:
            self._since = now
        elif not self._logged and now - self._since >= self._after:
            self._logged = True
            log.warning(
                "target %s cannot be reached, its requests wait and are tried again: %s", self._target, reason
            )

    def answered(self) -> None:
        """A request got an answer of any status."""
        if self._logged and self._since is not None:
            log.warning("target %s answers again, after %.0f s", self._target, self._clock() - self._since)
        self._since, self._logged = None, False
