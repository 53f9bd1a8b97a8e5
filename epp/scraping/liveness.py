"""Finds out within milliseconds that a worker was killed, though it holds no GET: by its kept metrics connection.

The kernel ends the connections of a killed process: with a reset if bytes of ours were unread, otherwise in order, as a
server does that closes an idle connection. So only another connect tells whether anybody is there. An ejected endpoint is asked by a probe before it gets a request.
"""

import asyncio
import logging
import ssl
from typing import Final

from yarl import URL

from adsum.addresses import authority
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Endpoint
from epp.scraping.page_client import NO_LISTENER, NoAnswerError, NoListenerError, PageClient, PageError

logger = logging.getLogger(__name__)

_LEAST_PAUSE: Final = 0.05
"""Seconds between two signs of loss that are followed: a server may reset each connection, or refuse each request."""


class Liveness:
    """Tells the datastore when nothing accepts connections at one endpoint, and when it answers again.

    `timeout`: seconds for a connect to the port that serves, where the metrics page is on another one.
    """

    def __init__(self, datastore: Datastore, endpoint: Endpoint, client: PageClient, timeout: float) -> None:
        self._datastore = datastore
        self._endpoint = endpoint
        self._client = client
        self._timeout = timeout
        self._looked_at = float("-inf")
        self._was_refused = False
        self._has_answered = False

    def answered(self) -> None:
        """It answered, whatever it said."""
        self._datastore.set_lost(self._endpoint, lost=False)
        self._has_answered = True
        if self._was_refused:
            self._was_refused = False
            self._datastore.process_replaced(self._endpoint)
            logger.info("%s (%s) answers again", self._endpoint.id, self._endpoint.destination)

    def end(self) -> None:
        """Nobody finds out any more: without a hint it counts as reachable."""
        self._datastore.set_lost(self._endpoint, lost=False)

    async def scrape_failed(self, error: Exception) -> None:
        """A scrape failed. Only a refused connect says that nobody is there; without an answer in time nothing is known."""
        if isinstance(error, NoListenerError):
            await self._refused(error)
        elif not isinstance(error, NoAnswerError):
            self.answered()
        elif self._datastore.is_lost(self._endpoint):
            # its page may never come (a firewall, another process): then a connection to the worker itself has to do
            worker = self._datastore.current(self._endpoint)
            if await self._connect(worker) is None:
                self._datastore.set_lost(worker, lost=False)

    def quiet_for(self, now: float) -> float:
        """Seconds in which no sign of loss is followed; 0 or less: none."""
        return self._looked_at + _LEAST_PAUSE - now

    def connection_reset(self, now: float) -> None:
        """The kept connection was reset: it is avoided until it answers."""
        self._looked_at = now
        self._datastore.set_lost(self._endpoint, lost=True)

    def suspected(self, now: float) -> None:
        """The data plane could not reach it, and the datastore knows."""
        self._looked_at = now

    async def accepts_another(self, now: float) -> bool:
        """Whether a worker that closed the kept connection in order accepts another one."""
        self._looked_at = now
        try:
            await self._client.connect()
        except NoAnswerError as error:
            await self._refused(error)
            return False
        return True

    async def _refused(self, error: NoAnswerError) -> None:
        worker = self._datastore.current(self._endpoint)
        # the page may be that of another process, whose end is not the worker's
        is_lost = worker.port == worker.metrics_port
        if not is_lost and (fault := await self._connect(worker)) is not None:
            is_lost = fault.errno in NO_LISTENER
        self._datastore.set_lost(worker, lost=is_lost)
        if is_lost and not self._was_refused:
            self._was_refused = True
            if self._has_answered and not self._datastore.first_sign_of_death(worker.key):
                return
            logger.warning("%s (%s) is avoided until it answers: %s", worker.id, worker.destination, error)

    async def _connect(self, worker: Endpoint) -> OSError | None:
        """Why the port that serves accepts no connection; None: it does."""
        try:
            async with asyncio.timeout(self._timeout):
                _, writer = await asyncio.open_connection(worker.address, worker.port)
        except OSError as error:  # TimeoutError is one
            return error
        writer.transport.abort()
        return None


_LIMIT: Final = 1024 * 1024
"""Bytes of an answer."""
_BUFFER_BYTES: Final = 16 * 1024


async def answers_probe(endpoint: Endpoint, path: str, timeout: float, tls: ssl.SSLContext | None) -> bool:
    """Whether `GET path` on the port that serves is answered within `timeout` seconds, by anything but a 5xx.

    A worker may have no such page; 501 says so too.
    """
    # the scheme is known for the page of metrics only
    scheme = endpoint.scheme if endpoint.port == endpoint.metrics_port else "http"
    url = URL(f"{scheme}://{authority(endpoint.address, endpoint.port)}{path}")
    client = PageClient(url, bytearray(_BUFFER_BYTES), tls=tls, timeout=timeout, limit=_LIMIT, accept="*/*")
    try:
        async with asyncio.timeout(timeout):
            await client.get()
        return True
    except PageError as error:
        return error.status is not None and (error.status < 500 or error.status == 501)
    except TimeoutError:
        return False
    except Exception as error:  # noqa: BLE001  # an answer is untrusted: whatever it has, the picker goes on
        logger.debug("the probe of %s failed: %s", endpoint.destination, type(error).__name__)
        return False
    finally:
        client.close()
