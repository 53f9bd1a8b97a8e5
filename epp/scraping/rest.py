"""Waits for the next scrape of an endpoint; what happens to the endpoint ends the wait early."""

import asyncio
from enum import Enum, auto
from functools import partial

from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Endpoint
from epp.scraping.page_client import PageClient


class Wake(Enum):
    """Why a wait ended. USED: a request was sent there. CLOSED, RESET: the worker ended the kept connection, in order or
    not. SUSPECTED: the data plane could not reach it.
    """

    DUE = auto()
    USED = auto()
    CLOSED = auto()
    RESET = auto()
    SUSPECTED = auto()


class Rest:
    """The waits of one endpoint, one at a time."""

    def __init__(self, datastore: Datastore, endpoint: Endpoint, client: PageClient) -> None:
        self._datastore = datastore
        self._key = endpoint.key
        self._client = client

    async def wait(self, seconds: float, *, for_use: bool, for_loss: bool) -> Wake:
        """Until `seconds` have passed, a request is sent there (`for_use`), or it seems to be lost (`for_loss`)."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[Wake] = loop.create_future()
        timer = loop.call_later(seconds, _wake, woken, Wake.DUE)
        if for_use:
            self._datastore.on_use[self._key] = partial(_wake, woken, Wake.USED)
        if for_loss:
            self._listen(woken)
        try:
            return await woken
        finally:
            timer.cancel()
            self._datastore.on_use.pop(self._key, None)
            self._datastore.on_suspect.pop(self._key, None)
            self._client.listen(None)

    def _listen(self, woken: "asyncio.Future[Wake]") -> None:
        def lost(error: Exception | None) -> None:
            _wake(woken, Wake.CLOSED if error is None else Wake.RESET)

        self._datastore.on_suspect[self._key] = partial(_wake, woken, Wake.SUSPECTED)
        self._client.listen(lost)
        if self._client.lost:  # since the last answer, before anybody listened
            _wake(woken, Wake.CLOSED)


def _wake(woken: "asyncio.Future[Wake]", why: Wake) -> None:
    if not woken.done():
        woken.set_result(why)
