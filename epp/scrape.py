"""Polls each endpoint's metrics page. One task an endpoint: one that hangs costs the others nothing."""

import asyncio
import logging
import random
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp
from yarl import URL

from epp.datastore import Datastore
from epp.endpoint import Endpoint
from epp.metrics_page import ENGINES, Engine, Load, detect, read_load

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeRules:
    """How endpoints are polled; times in seconds.

    `timeout` is for one whole answer, `limit` bytes its size. After errors the interval doubles up to `backoff`.
    `most` looks a second are taken in all: of many endpoints each is looked at less often, so that there is time left
    to pick. (1,000 looks cost 0.4 of a core.)
    """

    interval: float = 0.05
    timeout: float = 1.0
    backoff: float = 2.0
    most: float = 1000.0
    limit: int = 1024 * 1024
    engines: Sequence[Engine] = ENGINES


class ScrapeError(Exception):
    """One look at a metrics page gave nothing; the text is the short cause."""


Failed = Callable[[Endpoint, str], None]


class Scraper:
    """Keeps the numbers of a datastore's endpoints fresh for as long as `run` runs.

    `tls` is for endpoints whose scheme is https. `on_error` is called at every failure, for a counter.
    """

    def __init__(
        self,
        datastore: Datastore,
        rules: ScrapeRules,
        rng: random.Random,
        *,
        tls: ssl.SSLContext | None = None,
        on_error: Failed | None = None,
    ) -> None:
        self._datastore = datastore
        self._rules = rules
        self._rng = rng
        self._tls = tls
        self._on_error = on_error
        self._tasks: dict[_Target, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Poll every endpoint that the datastore has, until cancelled."""
        changed = asyncio.Event()
        self._datastore.on_change.append(changed.set)
        try:
            async with self._session() as session, asyncio.TaskGroup() as group:
                while True:
                    self._reconcile(session, group)
                    await changed.wait()
                    changed.clear()
        finally:
            self._datastore.on_change.remove(changed.set)
            self._tasks.clear()

    def _session(self) -> aiohttp.ClientSession:
        # no limit: one task an endpoint is limit enough, and a shared one would let the hanging hold up the rest
        connector = aiohttp.TCPConnector(limit=0, ssl=self._tls or True, keepalive_timeout=60.0)
        timeout = aiohttp.ClientTimeout(total=self._rules.timeout)
        return aiohttp.ClientSession(
            connector=connector,
            timeout=timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept": "text/plain", "Accept-Encoding": "identity"},
        )

    def _reconcile(self, session: aiohttp.ClientSession, group: asyncio.TaskGroup) -> None:
        wanted = {_Target.of(endpoint): endpoint for endpoint in self._datastore.endpoints}
        for target in self._tasks.keys() - wanted.keys():
            self._tasks.pop(target).cancel()
        for target in wanted.keys() - self._tasks.keys():
            poll = self._poll(session, target, wanted[target])
            self._tasks[target] = group.create_task(poll, name=f"scrape {target.url}")

    async def _poll(self, session: aiohttp.ClientSession, target: "_Target", endpoint: Endpoint) -> None:
        failures = 0
        engine = next((one for one in self._rules.engines if one.name == target.engine), None)
        await asyncio.sleep(self._rng.random() * self._rules.interval / 2)  # so that they do not beat as one
        while True:
            started = time.monotonic()
            try:
                page = await self._fetch(session, target.url)
                engine, load = _read(page, engine, self._rules.engines)
                now = time.monotonic()
                self._datastore.observe(endpoint, load, now, self._period(now - started))
            except Exception as error:  # noqa: BLE001  # one page, whatever is on it, must not end all the others' looks
                failures += 1
                self._failed(endpoint, _cause(error), failures)
            else:
                if failures:
                    logger.info("metrics of %s are back", endpoint.destination)
                failures = 0
            await asyncio.sleep(self._pause(failures, time.monotonic() - started))

    def _pause(self, failures: int, took: float) -> float:
        """Until the next look, the time of this one included; a slow page is asked for at most half of the time."""
        rules = self._rules
        pause = self._interval()
        if failures:
            pause = max(pause, min(rules.interval * 2.0 ** min(failures, 16), rules.backoff))
        return max(pause * self._rng.uniform(1.0 - _JITTER, 1.0 + _JITTER) - took, min(took, rules.timeout))

    def _interval(self) -> float:
        return max(self._rules.interval, len(self._tasks) / self._rules.most)

    def _period(self, took: float) -> float:
        """From one look that took so long to the next one, at most."""
        return max(self._interval() * (1.0 + _JITTER), 2.0 * took)

    async def _fetch(self, session: aiohttp.ClientSession, url: URL) -> bytes:
        try:
            async with session.get(url, allow_redirects=False) as answer:
                if answer.status != 200:
                    raise ScrapeError(f"status {answer.status}, expected 200")
                page = bytearray()
                async for piece in answer.content.iter_any():
                    page += piece
                    if len(page) > self._rules.limit:
                        answer.close()
                        raise ScrapeError(f"more than {self._rules.limit} bytes")
                return bytes(page)
        except TimeoutError as error:
            raise ScrapeError(f"no whole answer within {self._rules.timeout:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ScrapeError(str(error) or type(error).__name__) from error

    def _failed(self, endpoint: Endpoint, reason: str, failures: int) -> None:
        if failures == 1:
            logger.warning("no metrics of %s (%s): %s", endpoint.id, endpoint.destination, reason)
        if self._on_error is not None:
            self._on_error(endpoint, reason)


_JITTER: Final = 0.1


def _cause(error: Exception) -> str:
    if isinstance(error, ScrapeError):
        return str(error)
    return f"the page cannot be read: {type(error).__name__}: {str(error)[:200]}"


@dataclass(frozen=True, slots=True)
class _Target:
    """What makes a task another one: the worker's life, where its page is, how it is read."""

    key: tuple[str, str]
    url: URL
    engine: str | None

    @classmethod
    def of(cls, endpoint: Endpoint) -> "_Target":
        host = f"[{endpoint.address}]" if ":" in endpoint.address else endpoint.address
        url = URL(f"{endpoint.scheme}://{host}:{endpoint.metrics_port}{endpoint.metrics_path}")
        return cls(endpoint.key, url, endpoint.engine)


def _read(page: bytes, engine: Engine | None, engines: Sequence[Engine]) -> tuple[Engine, Load]:
    """The load and the engine in whose words it was said: the one given if it fits, else whichever does."""
    if engine is not None and (load := read_load(page, engine)).known:
        return engine, load
    engine = detect(page, engines)
    if engine is None:
        names = ", ".join(one.name for one in engines)
        raise ScrapeError(f"no known metric on the page; known engines: {names}")
    return engine, read_load(page, engine)
