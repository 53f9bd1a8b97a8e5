"""Waits for the next scrape of an endpoint; what happens to the endpoint ends the wait early."""

import asyncio
import time
from enum import Enum, auto
from functools import partial

from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Endpoint
from epp.scraping.liveness import Liveness
from epp.scraping.page_client import PageClient
from epp.scraping.schedule import EndpointSchedule


class _Wake(Enum):
    """Why a wait ended. USED: a request was sent there. CLOSED, RESET: the worker ended the kept connection, in order or
    not. SUSPECTED: the data plane could not reach it.
    """

    DUE = auto()
    USED = auto()
    CLOSED = auto()
    RESET = auto()
    SUSPECTED = auto()


class ScrapeWait:
    """The waits of one endpoint, one at a time."""

    def __init__(self, datastore: Datastore, endpoint: Endpoint, client: PageClient) -> None:
        self._datastore = datastore
        self._key = endpoint.key
        self._client = client

    async def sleep(self, schedule: EndpointSchedule, liveness: Liveness, pause: float) -> None:
        """Wait for the next scrape. A request to an idle endpoint ends the wait early, unless its scrapes fail; so does a sign
        that the worker is lost."""
        now = asyncio.get_running_loop().time
        until = now() + pause
        for_use = not schedule.failures and schedule.can_wake
        while True:
            left, quiet = until - now(), liveness.quiet_for(now())
            seconds = left if quiet <= 0 else min(left, quiet)
            match await self._wait(seconds, for_use=for_use, for_loss=quiet <= 0):
                case _Wake.USED:
                    schedule.mark_used(time.monotonic())
                    # not at once: the request has to reach the worker before its page can show it
                    until, for_use = min(until, now() + schedule.wake_delay()), False
                case _Wake.CLOSED:
                    if not await liveness.accepts_another(now()):
                        return
                case _Wake.RESET:
                    liveness.connection_reset(now())
                    return
                case _Wake.SUSPECTED:
                    liveness.suspected(now())
                    return
            if now() >= until:
                return

    async def _wait(self, seconds: float, *, for_use: bool, for_loss: bool) -> _Wake:
        """Until `seconds` have passed, a request is sent there (`for_use`), or it seems to be lost (`for_loss`)."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[_Wake] = loop.create_future()
        timer = loop.call_later(seconds, _wake, woken, _Wake.DUE)
        if for_use:
            self._datastore.on_use[self._key] = partial(_wake, woken, _Wake.USED)
        if for_loss:
            self._listen(woken)
        try:
            return await woken
        finally:
            timer.cancel()
            self._datastore.on_use.pop(self._key, None)
            self._datastore.on_suspect.pop(self._key, None)
            self._client.listen(None)

    def _listen(self, woken: "asyncio.Future[_Wake]") -> None:
        def lost(error: Exception | None) -> None:
            _wake(woken, _Wake.CLOSED if error is None else _Wake.RESET)

        self._datastore.on_suspect[self._key] = partial(_wake, woken, _Wake.SUSPECTED)
        self._client.listen(lost)
        if self._client.lost:  # since the last answer, before anybody listened
            _wake(woken, _Wake.CLOSED)


def _wake(woken: "asyncio.Future[_Wake]", why: _Wake) -> None:
    if not woken.done():
        woken.set_result(why)
