"""GETs of metadata over persistent connections, against servers that are slow or misbehave."""

import asyncio
import gc
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from aiohttp import web

from discovery import (
    Instance,
    MetadataClient,
    MetadataUnavailableError,
    SourceDiscovery,
    WorkerUnreachableError,
)
from discovery.memory import MemorySource, MemoryStore
from discovery.metadata.client import FetchLimiter
from discovery.metadata.connections import WorkerConnections
from tests.eventually import eventually
from tests.fake_worker import FakeWorker, hang, serving
from tests.in_time import TooLateError, with_more_time
from tests.raw_server import answers, raw_server


async def test_the_document_is_fetched_from_the_worker(
    store: MemoryStore, discovering: SourceDiscovery, worker: FakeWorker
) -> None:
    store.put(worker.instance())
    [instance] = await discovering.list_instances("prod", "decode")
    assert await instance.metadata() == {"model": {"name": "m"}}
    assert (await instance.metadata())["Model"]["name"] == "m"


async def test_an_unchanged_document_is_not_sent_again(
    store: MemoryStore, discovering: SourceDiscovery, worker: FakeWorker
) -> None:
    async def conditional(request: web.Request) -> web.Response:
        if request.headers.get("If-None-Match") == '"one.e.1"':
            return web.Response(status=304, headers={"ETag": '"one.e.1"'})
        return web.json_response({"a": 1}, headers={"ETag": '"one.e.1"'})

    worker.handler = conditional
    store.put(worker.instance())
    [instance] = await discovering.list_instances("prod", "decode")
    assert await instance.metadata() == await instance.metadata() == {"a": 1}
    assert worker.requests[1].headers["If-None-Match"] == '"one.e.1"'


@pytest.mark.parametrize(
    ("status", "headers", "reason"),
    [
        (302, {"Location": "http://127.0.0.1:1/"}, "HTTP 302, expected 200"),
        (500, {}, "HTTP 500, expected 200"),
        (401, {}, "a bearer token, or another one"),
        (200, {"Content-Type": "text/html"}, "content type 'text/html'"),
        (200, {"Content-Type": "application/json", "Instance-Id": "b"}, "of instance 'b', expected 'a'"),
    ],
)
async def test_other_answers_are_typed_errors(
    store: MemoryStore,
    discovering: SourceDiscovery,
    worker: FakeWorker,
    status: int,
    headers: dict[str, str],
    reason: str,
) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, headers=headers, body=b"{}")

    worker.handler = answer
    store.put(worker.instance())
    [instance] = await discovering.list_instances("prod", "decode")
    with pytest.raises(MetadataUnavailableError, match=reason):
        await instance.metadata()


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_a_server_without_documents_has_an_empty_one(
    store: MemoryStore, discovering: SourceDiscovery, worker: FakeWorker, status: int
) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status)

    worker.handler = answer
    store.put(worker.instance())
    [instance] = await discovering.list_instances("prod", "decode")
    assert await instance.metadata() == {}


async def test_a_refused_connection_is_an_error_that_names_the_address(
    store: MemoryStore, discovering: SourceDiscovery, worker: FakeWorker
) -> None:
    store.put(replace(worker.instance(), port=1))
    [instance] = await discovering.list_instances("prod", "decode")
    with pytest.raises(WorkerUnreachableError, match=r"a at 127.0.0.1:1 is unavailable"):
        await instance.metadata()


async def test_retries_that_hang_delay_no_first_fetch(worker: FakeWorker) -> None:
    client = MetadataClient(timeout=30.0, concurrency=8)
    hanging = worker.instance()
    worker.handler = hang
    retries = [asyncio.create_task(client.fetch(hanging, retry=True)) for _ in range(20)]
    try:
        async with asyncio.timeout(90):
            await eventually(lambda: len(worker.requests) >= 2)
            answer = await client.read_health(worker.instance())  # it has no such page, and says so at once
        assert answer is None
    finally:
        for task in retries:
            task.cancel()
        await asyncio.gather(*retries, return_exceptions=True)
        await client.aclose()


async def test_the_bearer_token_is_sent_and_never_shown(worker: FakeWorker) -> None:
    client = MetadataClient(token="s3cret", timeout=60.0)

    async def deny(request: web.Request) -> web.Response:
        return web.Response(status=403)

    worker.handler = deny
    with pytest.raises(MetadataUnavailableError) as caught:
        await client.fetch(worker.instance())
    assert worker.requests[0].headers["Authorization"] == "Bearer s3cret"
    assert "s3cret" not in str(caught.value)
    await client.aclose()


async def test_hundreds_of_hanging_workers_delay_no_other(store: MemoryStore) -> None:
    """Each has 30 seconds to answer, and 128 fetches begin at once."""
    async with serving(FakeWorker("0.0.0.0")) as good:
        with socket.create_server(("0.0.0.0", 0), backlog=1024) as hung:  # the kernel accepts, nobody answers
            port = hung.getsockname()[1]
            for number in range(400):
                where = f"127.1.{number // 200}.{number % 200 + 1}"
                store.put(Instance(f"hung-{number:03}", "prod", "decode", where, port, "one"))
            for number in range(20):
                where = f"127.2.0.{number + 1}"
                store.put(Instance(f"good-{number:02}", "prod", "decode", where, good.port, "one"))
            service = SourceDiscovery(MemorySource(store), client=MetadataClient(timeout=30.0))
            async with service, service.watch("prod", "decode", metadata=True) as stream:
                async with asyncio.timeout(90):
                    while len(stream.instances) < 20:
                        await anext(stream)
                assert all(instance_id.startswith("good") for instance_id in stream.instances)


async def test_fast_fetches_wait_for_a_slot() -> None:
    limiter, most, now = FetchLimiter(4), 0, 0

    async def ask() -> None:
        nonlocal most, now
        async with limiter.slot():
            now += 1
            most = max(most, now)
            await asyncio.sleep(0)
            now -= 1

    await asyncio.gather(*(ask() for _ in range(100)))
    assert (most, now) == (4, 0)


async def test_a_slow_fetch_gives_up_its_slot_exactly_once() -> None:
    limiter = FetchLimiter(1)
    order: list[str] = []
    answer = asyncio.Event()

    async def ask(name: str, *, slow: bool) -> None:
        async with limiter.slot():
            order.append(f"{name} begins")
            if slow:
                await answer.wait()
            order.append(f"{name} ends")

    slow = asyncio.create_task(ask("slow", slow=True))
    await asyncio.sleep(0)
    async with asyncio.timeout(90):
        await ask("quick", slow=False)
        answer.set()
        await slow
    assert order == ["slow begins", "quick begins", "quick ends", "slow ends"]
    await one_at_a_time(limiter)


async def test_a_cancelled_waiter_takes_no_slot() -> None:
    await one_at_a_time(FetchLimiter(1))


async def one_at_a_time(limiter: FetchLimiter) -> None:
    begun = time.monotonic()
    async with limiter.slot():
        second = limiter.slot()
        waiting = asyncio.create_task(second.__aenter__())
        await asyncio.sleep(0)
        if waiting.done() and time.monotonic() - begun > 0.2:  # so long that the first one counts as slow
            await second.__aexit__(None, None, None)
            return await one_at_a_time(limiter)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])
    async with asyncio.timeout(90), limiter.slot(retry=True):
        return None


EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def at(port: int) -> Instance:
    return Instance("w", "prod", "decode", "127.0.0.1", port, "one")


@asynccontextmanager
async def connecting(token: str | None = None) -> AsyncIterator[WorkerConnections]:
    connections = WorkerConnections(ssl_context=None, token=token)
    try:
        yield connections
    finally:
        await connections.aclose()


async def test_requests_in_turn_share_a_connection_and_concurrent_ones_do_not() -> None:
    heads: list[list[bytes]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append([])
        while True:
            heads[-1].append(await reader.readuntil(b"\r\n\r\n"))
            await asyncio.sleep(0.05)
            writer.write(EMPTY)

    async with raw_server(serve) as port, connecting("s3cret") as connections:
        worker = at(port)
        for _ in range(3):
            answer = await connections.get(worker, "/metadata", {"Prefer": "wait=2"}, 20)
            assert (answer.status, bytes(answer.body)) == (200, b"{}")
        assert len(heads) == 1
        assert heads[0][0].decode().split("\r\n")[:2] == [
            "GET /metadata HTTP/1.1",
            f"Host: {worker.authority}",
        ]
        assert b"\r\nAuthorization: Bearer s3cret\r\n" in heads[0][0]
        assert heads[0][0].endswith(b"\r\nPrefer: wait=2\r\n\r\n")
        await asyncio.gather(*(connections.get(worker, "/health", {}, 20) for _ in range(2)))
        assert sorted(map(len, heads)) == [1, 4]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "does not speak HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n", "more than 1048576 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx", "encoded"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000, "header fields take more than"),
    ],
)
async def test_an_invalid_answer_shows_that_the_port_is_open(said: bytes, reason: str) -> None:
    async with raw_server(answers(said)) as port, connecting() as connections:
        with pytest.raises(MetadataUnavailableError, match=reason) as caught:
            await connections.get(at(port), "/metadata", {}, 20)
    assert caught.value.connected
    assert not isinstance(caught.value, WorkerUnreachableError)


@with_more_time(300)
async def test_refused_reset_and_silent_are_distinguished(ms: int) -> None:
    heard = asyncio.Event()

    cut = answers(b"", keep=False)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        heard.set()
        await reader.read()

    seen: list[tuple[bool, bool]] = []
    async with raw_server(cut) as refused:
        pass
    async with raw_server(cut) as cutting, raw_server(silent) as hung, connecting() as connections:
        for port, seconds in ((refused, 60.0), (cutting, 60.0), (hung, ms / 1000)):
            with pytest.raises(WorkerUnreachableError) as caught:
                await connections.get(at(port), "/metadata", {}, seconds)
            seen.append((caught.value.connected, caught.value.silent))
        if not heard.is_set():
            raise TooLateError
    assert seen == [(False, False), (True, False), (True, True)]


async def test_closing_fails_requests_in_flight_and_closes_all_connections() -> None:
    arrived = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        arrived.set()
        await reader.read()

    connections = WorkerConnections(ssl_context=None, token=None)
    async with raw_server(silent) as port:
        under_way = asyncio.create_task(connections.get(at(port), "/metadata", {}, 20))
        async with asyncio.timeout(90):
            await arrived.wait()
        await connections.aclose()
        async with asyncio.timeout(90):
            with pytest.raises(WorkerUnreachableError):
                await under_way
        with pytest.raises(MetadataUnavailableError, match="this discovery is closed"):
            await connections.get(at(port), "/metadata", {}, 20)
    gc.collect()  # a transport that was left open would warn, which is an error here


def test_a_token_that_is_not_valid_in_a_header_is_refused_and_not_shown() -> None:
    with pytest.raises(ValueError, match="the bearer token has a character") as caught:
        WorkerConnections(ssl_context=None, token="s3cret\r\nX: 1")
    assert "s3cret" not in str(caught.value)
