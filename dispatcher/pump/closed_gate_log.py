"""Logs a gate that stays closed while requests wait: one line after 10 s, one when it ends."""

import asyncio
import logging
import time

LOG_AFTER = 10.0
"""Seconds for which a gate is closed before it is logged; a working gate closes for shorter times."""

log = logging.getLogger(__name__)


class ClosedGateLog:
    """Written by the pump of one queue. `after`: seconds until a closed gate is logged."""

    def __init__(self, queue: str, after: float = LOG_AFTER) -> None:
        self.after = after
        self._queue = queue
        self._reason = ""
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._logged = False

    def closed(self, reason: str) -> None:
        """The gate refused the whole queue, now or once more."""
        self._reason = reason
        if self._timer is None:
            self._since = time.monotonic()
            self._timer = asyncio.get_running_loop().call_later(self.after, self._log)

    def opened(self, event: str) -> None:
        """A request is sent, or none waits any more: `event`, for the log."""
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        if self._logged:
            self._logged = False
            log.warning("queue %s: %s, after %.0f s", self._queue, event, time.monotonic() - self._since)

    @property
    def closed_for(self) -> float | None:
        """Seconds since the gate closed; None: it is open, or nothing waits for it."""
        return None if self._timer is None else time.monotonic() - self._since

    def close(self) -> None:
        """Cancel the line that is due."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._logged = False

    def _log(self) -> None:
        self._logged = True
        log.warning("queue %s: nothing is sent: %s", self._queue, self._reason)
