import asyncio
from dataclasses import replace

import pytest
from aiohttp import web

from discovery import MetadataClient, MetadataUnavailableError, SourceDiscovery, WorkerUnreachableError
from discovery.memory import MemoryStore
from tests.eventually import eventually
from tests.fake_worker import FakeWorker, hang


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


async def test_a_body_over_the_limit_is_not_read_on(
    store: MemoryStore, discovering: SourceDiscovery, worker: FakeWorker
) -> None:
    worker.body = b'{"a": "' + b"x" * (2 * 1024 * 1024) + b'"}'
    store.put(worker.instance())
    [instance] = await discovering.list_instances("prod", "decode")
    with pytest.raises(MetadataUnavailableError, match="more than 1048576 bytes"):
        await instance.metadata()


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
