"""How soon the datastore knows that a worker without a held GET was killed, and what does not mislead it."""

import asyncio
import random
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from discovery import Instance, InstanceAddedEvent
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Endpoint
from epp.scraping.liveness import answers_probe
from epp.scraping.schedule import ScrapeIntervals
from epp.scraping.scraper import Scraper, ScrapeSettings
from tests.eventually import eventually
from tests.free_port import free_port
from tests.model_server_process import PAGE, model_server
from tests.raw_server import raw_server, reset

SELDOM = ScrapeSettings(intervals=ScrapeIntervals.fixed(3600.0), timeout=60.0)
"""So seldom that nothing but the kept connection can tell that a worker is gone."""
OK = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(PAGE) + PAGE
AfterAnswer = Callable[[asyncio.StreamWriter], Awaitable[None]]


class PageServer:
    """Answers each GET with a metrics page, then does `after`, then waits for the next GET."""

    def __init__(self, after: AfterAnswer | None = None) -> None:
        self.after = after
        self.gets = 0
        self.connections = 0
        self.port = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while True:
            await reader.readuntil(b"\r\n\r\n")
            self.gets += 1
            writer.write(OK)
            await writer.drain()
            if self.after is not None:
                await self.after(writer)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["PageServer"]:
        async with raw_server(self._serve, port=self.port) as self.port:
            yield self


@asynccontextmanager
async def scraping(store: Datastore, settings: ScrapeSettings = SELDOM) -> AsyncIterator[None]:
    task = asyncio.create_task(Scraper(store, settings, random.Random(1)).run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def add(store: Datastore, port: int, metrics_port: int | None = None) -> Endpoint:
    document = {} if metrics_port is None else {"transport": {"http": {"metrics_port": metrics_port}}}
    store.apply(InstanceAddedEvent(Instance("w", "ns", "c", "127.0.0.1", port, "a")), document)
    return store.endpoints[0]


def scraped(store: Datastore) -> bool:
    return store.pool(0.0).age[0] != float("inf")


async def test_a_killed_worker_is_noticed_by_its_kept_connection() -> None:
    store = Datastore()
    async with model_server() as (process, port), scraping(store):
        add(store, port)
        await eventually(lambda: scraped(store))
        assert store.all_reachable
        process.kill()
        await eventually(lambda: not store.all_reachable)
        assert not store.pool(0.0).reachable[0]


async def test_a_worker_that_returns_is_reachable_and_its_cache_is_forgotten() -> None:
    store = Datastore()
    ended: list[str] = []
    store.on_reset.append(lambda endpoint: ended.append(endpoint.id))
    settings = ScrapeSettings(intervals=ScrapeIntervals.fixed(0.05))
    async with scraping(store, settings):
        async with model_server(port=free_port()) as (process, port):
            add(store, port)
            await eventually(lambda: scraped(store))
            process.kill()
            await eventually(lambda: not store.all_reachable)
        assert ended == []
        async with model_server(port=port):
            await eventually(lambda: store.all_reachable)
            assert ended == ["w"]


async def test_a_server_that_closes_an_idle_connection_is_not_dead() -> None:
    """As uvicorn does after `timeout_keep_alive`: the picker connects again, and waits for the next scrape."""
    closed = asyncio.Event()

    async def close(writer: asyncio.StreamWriter) -> None:
        writer.close()
        closed.set()

    store, seen = Datastore(), []
    store.on_load_change.append(lambda endpoint: seen.append(store.all_reachable))
    async with PageServer(close).serving() as server, scraping(store):
        add(store, server.port)
        await closed.wait()
        await eventually(lambda: server.connections == 2)
        assert server.gets == 1
    assert False not in seen


async def test_a_server_that_closes_each_connection_at_once_is_not_asked_in_a_loop() -> None:
    async def close(writer: asyncio.StreamWriter) -> None:
        reset(writer)

    store = Datastore()
    settings = ScrapeSettings(intervals=ScrapeIntervals.fixed(0.05))
    loop = asyncio.get_running_loop()
    async with PageServer(close).serving() as server, scraping(store, settings):
        started = loop.time()
        add(store, server.port)
        await eventually(lambda: server.gets >= 8)
        # a scrape each 0.05 s, and at most one more for each reset that is followed
        assert loop.time() - started > 0.05 * 2
        await eventually(lambda: store.all_reachable)


async def test_a_reset_counts_until_the_next_page() -> None:
    writers: list[asyncio.StreamWriter] = []

    async def keep(writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    store, seen = Datastore(), []
    store.on_load_change.append(lambda endpoint: seen.append(store.all_reachable))
    async with PageServer(keep).serving() as server, scraping(store):
        add(store, server.port)
        await eventually(lambda: scraped(store))
        reset(writers[0])
        await eventually(lambda: server.gets == 2)
        await eventually(lambda: store.all_reachable)
    assert False in seen


async def test_a_suspicion_of_the_data_plane_counts_until_the_next_page() -> None:
    store = Datastore()
    async with PageServer().serving() as server, scraping(store):
        endpoint = add(store, server.port)
        await eventually(lambda: endpoint.key in store.on_suspect)
        store.suspect(endpoint)
        assert not store.all_reachable
        await eventually(lambda: store.all_reachable)
        assert server.gets == 2


async def test_a_worker_whose_page_never_comes_is_judged_by_its_own_port() -> None:
    """A firewall drops what goes to the metrics port: no answer there will ever end a suspicion."""
    store = Datastore()
    settings = ScrapeSettings(intervals=ScrapeIntervals.fixed(0.05), timeout=0.1)
    silent = socket.create_server(("127.0.0.1", 0))  # accepts by its backlog, and never answers
    with silent:
        async with PageServer().serving() as worker, scraping(store, settings):
            endpoint = add(store, worker.port, silent.getsockname()[1])
            for _ in range(3):
                await eventually(lambda: endpoint.key in store.on_suspect)
                store.suspect(endpoint)
                assert not store.all_reachable
                await eventually(lambda: store.all_reachable)
            assert worker.connections >= 3


async def test_without_somebody_who_finds_out_a_suspicion_counts_for_nothing() -> None:
    store = Datastore()
    store.suspect(add(store, 9))
    assert store.all_reachable


async def test_a_metrics_page_that_is_gone_says_nothing_of_a_worker_on_another_port() -> None:
    store = Datastore()
    async with PageServer().serving() as worker, model_server() as (exporter, page_port), scraping(store):
        add(store, worker.port, page_port)
        await eventually(lambda: scraped(store))
        exporter.kill()
        await eventually(lambda: worker.connections > 0)
        assert store.all_reachable


async def test_a_metrics_page_and_its_worker_are_gone() -> None:
    store = Datastore()
    dead = socket.socket()  # bound, not listening
    dead.bind(("127.0.0.1", 0))
    with dead:
        async with model_server() as (exporter, page_port), scraping(store):
            add(store, dead.getsockname()[1], page_port)
            await eventually(lambda: scraped(store))
            assert store.all_reachable, "only a scrape that fails makes the picker look at the other port"
            exporter.kill()
            await eventually(lambda: not store.all_reachable)


async def test_a_page_that_hangs_is_no_lost_worker() -> None:
    async def hang(writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    store = Datastore()
    failures: list[str] = []
    settings = ScrapeSettings(intervals=ScrapeIntervals.fixed(0.05), timeout=0.2)
    scraper = Scraper(store, settings, random.Random(1), on_error=lambda _, reason: failures.append(reason))
    async with PageServer(hang).serving() as server:
        task = asyncio.create_task(scraper.run())
        add(store, server.port)
        await eventually(lambda: failures)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert failures[0].startswith("no complete answer")
    assert store.all_reachable


async def test_one_line_says_that_a_worker_is_gone_and_one_that_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    store = Datastore()
    settings = ScrapeSettings(intervals=ScrapeIntervals.fixed(0.05))
    async with scraping(store, settings):
        async with model_server(port=free_port()) as (process, port):
            add(store, port)
            await eventually(lambda: scraped(store))
            process.kill()
            await eventually(lambda: "is avoided" in caplog.text)
        async with model_server(port=port):
            await eventually(lambda: "answers again" in caplog.text)
    lines = [r.getMessage() for r in caplog.records if r.name.endswith("liveness")]
    who = f"w (127.0.0.1:{port})"
    assert lines[:2] == [f"{who} is avoided until it answers: Connection refused", f"{who} answers again"]


async def test_a_worker_that_is_killed_while_it_is_stopped_is_noticed() -> None:
    store = Datastore()
    failures: list[str] = []
    settings = ScrapeSettings(intervals=ScrapeIntervals.fixed(0.05), timeout=0.2)
    scraper = Scraper(store, settings, random.Random(1), on_error=lambda _, reason: failures.append(reason))
    async with model_server() as (process, port):
        task = asyncio.create_task(scraper.run())
        add(store, port)
        await eventually(lambda: scraped(store))
        process.send_signal(signal.SIGSTOP)
        await eventually(lambda: failures)
        assert store.all_reachable
        process.kill()
        await eventually(lambda: not store.all_reachable)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def serving(answer: bytes | None, asked: list[bytes]) -> AsyncIterator[Endpoint]:
    """A worker that answers this to everything, None: nothing; the metrics are on another port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer or b"")
        await reader.read()

    async with raw_server(serve) as port:
        yield Endpoint(
            id="w", incarnation="1", address="127.0.0.1", port=port, metrics_port=9, scheme="https"
        )


def response(status: str, body: bytes = b"") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    ("answer", "alive"),
    [
        (response("200 OK"), True),
        (response("200 OK", b"x" * 500_000), True),
        (response("404 Not Found"), True),
        (response("405 Method Not Allowed"), True),
        (response("401 Unauthorized"), True),
        (response("307 Temporary Redirect"), True),
        (response("501 Not Implemented"), True),
        (response("500 Internal Server Error"), False),
        (response("503 Service Unavailable"), False),
        (b"SSH-2.0-OpenSSH\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab", False),
        (None, False),
    ],
    ids=lambda given: given[:14].decode() if isinstance(given, bytes) else str(given),
)
async def test_what_an_answer_says(answer: bytes | None, alive: bool) -> None:
    asked: list[bytes] = []
    async with serving(answer, asked) as endpoint:
        # nobody waits for an answer that comes
        within = 60.0 if alive or (answer or b"").startswith(b"HTTP/1.1 50") else 0.3
        assert await answers_probe(endpoint, "/health?deep=1", within, None) is alive
    assert asked[0].startswith(b"GET /health?deep=1 HTTP/1.1\r\n")


async def test_a_port_that_nobody_listens_at() -> None:
    async with serving(None, []) as endpoint:
        pass
    assert await answers_probe(endpoint, "/health", 60.0, None) is False
