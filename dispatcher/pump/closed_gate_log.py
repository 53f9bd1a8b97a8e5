"""A gate that stays closed is said in the log: once when it has been closed for a while, once when it is over."""

import asyncio
import logging
import time

LOG_AFTER = 10.0
"""Seconds for which a gate is closed before it is said; shorter is how a gate works."""

log = logging.getLogger(__name__)


class ClosedGateLog:
    """Of one queue; told by its pump. `after`: seconds until it is said."""

    def __init__(self, queue: str, after: float = LOG_AFTER) -> None:
        self.after = after
        self._queue = queue
        self._reason = ""
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._logged = False

    def closed(self, reason: str) -> None:
        """The gate refused the whole queue, for the first time or again."""
        self._reason = reason
        if self._timer is None:
            self._since = time.monotonic()
            self._timer = asyncio.get_running_loop().call_later(self.after, self._log)

    def over(self, how: str) -> None:
        """Something goes, or nothing is there that could go; `how` is what the log says."""
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        if self._logged:
            self._logged = False
            log.warning("queue %s: %s, after %.0f s", self._queue, how, time.monotonic() - self._since)

    def close(self) -> None:
        """Say nothing more of this time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._logged = False

    def _log(self) -> None:
        self._logged = True
        log.warning("queue %s: nothing goes: %s", self._queue, self._reason)
