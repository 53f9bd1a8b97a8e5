"""Scrapes each endpoint's metrics page in a task of its own, so that one that hangs delays no other."""

import asyncio
import logging
import random
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Final, NamedTuple, Never

from yarl import URL

from adsum.addresses import authority
from adsum.logs import RateLimitedLog
from adsum.prometheus_page import Page
from adsum.quoting import quoted
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import LONG_LATE, Endpoint, Key
from epp.endpoints.load import Load
from epp.endpoints.metadata_feed import LINES_A_MINUTE
from epp.scraping.engines import ENGINES, Engine
from epp.scraping.liveness import Liveness
from epp.scraping.metrics_page import detect_engine, read_cache_tokens, read_load
from epp.scraping.page_client import NoAnswerError, NoPageError, OverdueError, PageClient, PageError
from epp.scraping.schedule import EndpointSchedule, ScrapeIntervals, ScrapeSchedule
from epp.scraping.scrape_wait import ScrapeWait

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeSettings:
    """How often endpoints are scraped; for one answer, `timeout` in seconds and `limit` in bytes."""

    intervals: ScrapeIntervals = field(default_factory=ScrapeIntervals)
    timeout: float = 1.0
    limit: int = 1024 * 1024
    engines: Sequence[Engine] = ENGINES


_BUFFER_BYTES: Final = 256 * 1024
"""Read buffer, shared by all connections: larger than a model server's page."""

_CACHE_SIZE_ATTEMPTS: Final = 5
"""Pages that are searched for the size of the worker's cache: it is there from the beginning, or never."""


@dataclass(slots=True)
class ScrapeErrors:
    """`failed`: all scrapes that failed; `fetch`: those whose page did not come."""

    failed: int = 0
    fetch: int = 0

    @property
    def read(self) -> int:
        """Scrapes whose page came and could not be used."""
        return self.failed - self.fetch


OnError = Callable[[Endpoint, str], None]


class Scraper:
    """Keeps the numbers of a datastore's endpoints fresh while `run` runs.

    `settings` None: nothing is scraped. `tls`: for endpoints whose scheme is https. `on_error`: called with the endpoint and
    the cause of each failure.
    """

    def __init__(
        self,
        datastore: Datastore,
        settings: ScrapeSettings | None,
        rng: random.Random,
        *,
        tls: ssl.SSLContext | None = None,
        on_error: OnError | None = None,
    ) -> None:
        self._datastore = datastore
        self._is_on = settings is not None
        self._settings = settings or ScrapeSettings()
        self._schedule = ScrapeSchedule(self._settings.intervals, rng)
        self.tls = tls
        """As it is in force now."""
        self._buffer = bytearray(_BUFFER_BYTES)
        self._on_error = on_error
        self._engines: dict[Key, str] = {}
        self.engines_detected = 0
        """How often the engine of an endpoint was detected that was another one before."""
        self._limited_log = RateLimitedLog(logger, most=LINES_A_MINUTE)
        self.errors = ScrapeErrors()
        self._tasks: dict[_Target, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._rng = rng

    def reconfigure(self, settings: ScrapeSettings | None, tls: ssl.SSLContext | None) -> None:
        """Scrape by these from now on, None: nothing. The numbers stay until the next scrape."""
        if settings is not None:
            self._settings = settings
            self._schedule = ScrapeSchedule(settings.intervals, self._rng)
        self._is_on, self.tls = settings is not None, tls
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()
        self._changed.set()

    def engine(self, endpoint: Endpoint) -> str | None:
        """The model server whose series its page has, before the first page the one that is declared; None: unknown."""
        return self._engines.get(endpoint.key, endpoint.engine)

    async def run(self) -> Never:
        """Scrape every endpoint of the datastore until cancelled."""
        changed = self._changed.set
        self._datastore.on_change.append(changed)
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    self._reconcile(group)
                    await self._changed.wait()
                    self._changed.clear()
        finally:
            self._datastore.on_change.remove(changed)
            self._tasks.clear()

    def _reconcile(self, group: asyncio.TaskGroup) -> None:
        endpoints = self._datastore.endpoints if self._is_on else ()
        wanted = {_Target.of(endpoint): endpoint for endpoint in endpoints}
        for target in self._tasks.keys() - wanted.keys():
            self._tasks.pop(target).cancel()
        for target in wanted.keys() - self._tasks.keys():
            poll = self._poll(target, wanted[target])
            self._tasks[target] = group.create_task(poll, name=f"scrape {target.address}")

    async def _poll(self, target: "_Target", endpoint: Endpoint) -> None:
        settings = self._settings
        try:
            client = PageClient(
                target.url(), self._buffer, tls=self.tls, timeout=settings.timeout, limit=settings.limit
            )
        except ValueError as error:
            self._report_failure(endpoint, f"its address and path make no URL: {error}", first=True)
            return
        engine = next((one for one in settings.engines if one.name == target.engine), None)
        if target.engine and engine is None:
            self._limited_log.warning(
                "engine",
                "%s: the engine %s is not known, expected one of %s; its metrics page decides",
                endpoint.id,
                quoted(target.engine),
                ", ".join(one.name for one in settings.engines),
            )
        liveness = Liveness(self._datastore, endpoint, client, settings.timeout)
        polled = _Polled(endpoint, client, self._schedule.add(), liveness, engine)
        scrape_wait = ScrapeWait(self._datastore, endpoint, client)
        client.on_overdue = partial(self._overdue, polled)
        try:
            await asyncio.sleep(polled.schedule.first_delay())
            while True:
                pause = await self._look(polled)
                await scrape_wait.sleep(polled.schedule, liveness, pause)
        finally:
            polled.schedule.remove()
            client.close()
            liveness.end()
            self._engines.pop(endpoint.key, None)

    async def _look(self, polled: "_Polled") -> float:
        """Scrape once. Returns the seconds until the next scrape."""
        endpoint, schedule = polled.endpoint, polled.schedule
        started = time.monotonic()
        if polled.state in (PageState.READ, PageState.FAILED):  # otherwise it is late already, and stays so
            self._datastore.expect_page(endpoint, started + schedule.patience)
        polled.state = PageState.SILENT
        try:
            page = await self._fetch(polled)
            polled.state = PageState.READ
            took = schedule.page_took(time.monotonic() - started)
            polled.liveness.answered()
            self._read(page, polled, took)
        except Exception as error:  # noqa: BLE001  # a page is untrusted: whatever it has, this task goes on
            await polled.liveness.scrape_failed(error)
            self._record_failure(polled, error)
            took = min(time.monotonic() - started, self._settings.timeout)
            polled.state = self._state_after(error, polled)
        now = time.monotonic()
        pause = 0.0 if polled.state is PageState.OVERDUE else schedule.next_at(now, took) - now
        if polled.state is PageState.FAILED:
            self._datastore.expect_page(endpoint, now + pause + LONG_LATE)
        return pause

    def _state_after(self, error: Exception, polled: "_Polled") -> "PageState":
        if isinstance(error, OverdueError) and not self._datastore.is_lost(polled.endpoint):
            return PageState.OVERDUE
        answered = isinstance(error, PageError) and not isinstance(error, NoAnswerError)
        return PageState.FAILED if answered or polled.state is PageState.READ else PageState.SILENT

    def _read(self, page: Page, polled: "_Polled", took: float) -> None:
        endpoint, schedule = polled.endpoint, polled.schedule
        polled.engine, load = _read_page(page, polled.engine, self._settings.engines)
        if self._engines.get(endpoint.key) != polled.engine.name:
            self._engines[endpoint.key] = polled.engine.name
            self.engines_detected += 1
        if load.problem:  # observe() drops the numbers; the rest is that of a failed scrape
            self._datastore.observe(endpoint, load, time.monotonic())
            raise PageError(f"the page has an implausible value: {load.problem}")
        if schedule.failures:
            logger.info("metrics of %s are back", endpoint.destination)
        now = time.monotonic()
        schedule.succeed(now, in_use=bool(load.running or load.waiting or self._is_used(endpoint)))
        self._datastore.observe(endpoint, load, now, schedule.period(took))
        if polled.cache_size_attempts and self._datastore.cache_tokens(endpoint) is None:
            polled.cache_size_attempts -= 1
            tokens = read_cache_tokens(page, polled.engine)
            if tokens is not None:
                self._datastore.set_cache_tokens(endpoint, tokens)

    async def _fetch(self, polled: "_Polled") -> Page:
        try:
            return await polled.client.get()
        except PageError:
            self.errors.fetch += 1
            raise
        finally:
            self._datastore.on_suspect.pop(polled.endpoint.key, None)

    def _overdue(self, polled: "_Polled") -> bool:
        """An answer is overdue: a failed scrape, but its answer is waited for unless the worker seems to be lost."""
        if self._datastore.is_lost(polled.endpoint):
            return False
        self.errors.fetch += 1
        self._record_failure(polled, NoAnswerError(polled.client.overdue))
        self._datastore.on_suspect[polled.endpoint.key] = polled.client.give_up
        return True

    def _record_failure(self, polled: "_Polled", error: Exception) -> None:
        self.errors.failed += 1
        endpoint, schedule = polled.endpoint, polled.schedule
        has_page = not isinstance(error, NoPageError)
        self._datastore.record_failed_scrape(endpoint, has_page=has_page)
        self._report_failure(endpoint, _cause(error), first=not schedule.failures, has_page=has_page)
        schedule.fail(time.monotonic(), in_use=self._is_used(endpoint))

    def _is_used(self, endpoint: Endpoint) -> bool:
        """By this picker, or by one that it scrapes for."""
        return bool(self._datastore.inflight(endpoint) or self._datastore.peer_inflight(endpoint))

    def _report_failure(self, endpoint: Endpoint, reason: str, *, first: bool, has_page: bool = True) -> None:
        # of one that is lost, Liveness says so, and of one that is gone there is nothing to say
        if first and self._datastore.find(endpoint.key) is not None and not self._datastore.is_lost(endpoint):
            text = (
                "no metrics of %s (%s): %s; until they are back it counts as full and ranks behind endpoints whose load is known"
                if has_page
                else "%s (%s) has no metrics page (%s): its requests in flight count as its queue, and it ranks behind endpoints "
                "whose load is known"
            )
            logger.warning(text, endpoint.id, endpoint.destination, reason)
        if self._on_error is not None:
            self._on_error(endpoint, reason)


def _cause(error: Exception) -> str:
    if isinstance(error, PageError):
        return str(error)
    return f"the page cannot be parsed: {type(error).__name__}: {str(error)[:200]}"


class PageState(Enum):
    """The result of the last request for a page.

    READ: a page came and counts. FAILED: the worker answered, with an error or with a page that cannot be used, so it does
    not stand still. SILENT: no answer came; it stays late until one comes. OVERDUE: as SILENT, but the worker holds the
    request: it is asked again at once. Each request begins as SILENT::

        READ, FAILED ── request, with a page expected ──► SILENT ──┬─ page ──► READ ─ unusable ──► FAILED
        SILENT, OVERDUE ── request ───────────────────────► ▲      ├─ error ─────────────────────► FAILED
                                                                   └─ no answer while it is held ► OVERDUE
    """

    READ = auto()
    FAILED = auto()
    SILENT = auto()
    OVERDUE = auto()


@dataclass(slots=True)
class _Polled:
    """The state that the task of one endpoint keeps from one page to the next."""

    endpoint: Endpoint
    client: PageClient
    schedule: EndpointSchedule
    liveness: Liveness
    engine: Engine | None
    state: PageState = PageState.READ
    cache_size_attempts: int = _CACHE_SIZE_ATTEMPTS


class _Target(NamedTuple):
    """Identifies a scraping task: the worker's incarnation, where its page is, how it is read.

    All targets are made anew whenever an endpoint changes, so the URL is left out: it takes 25 µs to parse.
    """

    key: tuple[str, str]
    scheme: str
    address: str
    port: int
    path: str
    engine: str | None

    @classmethod
    def of(cls, endpoint: Endpoint) -> "_Target":
        scheme, address, engine = endpoint.scheme, endpoint.address, endpoint.engine
        return cls(endpoint.key, scheme, address, endpoint.metrics_port, endpoint.metrics_path, engine)

    def url(self) -> URL:
        """Raises ValueError if the address or the path does not fit into a URL."""
        return URL(f"{self.scheme}://{authority(self.address, self.port)}{self.path}")


def _read_page(page: Page, engine: Engine | None, engines: Sequence[Engine]) -> tuple[Engine, Load]:
    """The load, and the engine whose series the page has: `engine` if possible, else the first that matches."""
    if engine is not None and (load := read_load(page, engine)).known:
        return engine, load
    engine = detect_engine(page, engines)
    if engine is None:
        names = ", ".join(one.name for one in engines)
        raise PageError(f"the page has no series of a known engine; known: {names}")
    return engine, read_load(page, engine)
