"""Watches with metadata over workers that send wrong or invalid answers: other workers are not affected."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from aiohttp import web

from discovery import ComponentKey, MetadataClient, SourceDiscovery, WatchState
from discovery.memory import MemorySource, MemoryStore
from discovery.metadata.silence import SilenceTimings
from tests.eventually import eventually
from tests.fake_worker import FakeWorker, Handler, hang, serving
from tests.raw_server import raw_server

DEEP = b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"


def says(body: bytes, content_type: str = "application/json", status: int = 200) -> Handler:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=body, content_type=content_type, status=status)

    return answer


@pytest.mark.parametrize(
    ("address", "handler", "words"),
    [
        ("127.0.0.1", says(DEEP), "nested too deeply"),
        ("\u2100.com", says(b"{}"), "its address is not a valid host"),
        ("a..b", says(b"{}"), "its address is not a valid host"),
        ("127.0.0.1", says(b'{"a": "\xff"}'), "not a JSON object"),
        ("127.0.0.1", says(b"<html>", "text/html"), "content type"),
        ("127.0.0.1", says(b"", status=500), "HTTP 500"),
        ("127.0.0.1", hang, "no answer within 1 s"),
    ],
    ids=["deep", "no host name", "an empty label", "no JSON", "html", "500", "hang"],
)
async def test_a_bad_worker_stays_pending_shows_in_explain_and_delays_no_other(
    store: MemoryStore,
    impatient: SourceDiscovery,
    worker: FakeWorker,
    address: str,
    handler: Handler,
    words: str,
) -> None:
    async def is_told() -> bool:
        found = (await impatient.explain("prod", "decode")).candidates
        return any(words in (one.reason or "") for one in found if one.id == "bad")

    bad = FakeWorker()
    bad.handler = handler
    async with serving(bad), impatient.watch("prod", "decode", metadata=True) as stream, asyncio.timeout(90):
        store.put(replace(bad.instance("bad"), address=address))
        await eventually(is_told)
        store.put(worker.instance("good"))
        assert (await anext(stream)).instance_id == "good"
        bad.handler = bad.document
        if address == "127.0.0.1":
            while (await anext(stream)).instance_id != "bad":
                pass  # the good one may have been slow for a second


async def test_an_unexpected_error_affects_one_worker_and_is_logged_once(
    store: MemoryStore, worker: FakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    class Faulty(MemorySource):
        def suspect(self, key: ComponentKey, instance_id: str) -> None:
            raise LookupError("a fault of ours")

    gone = FakeWorker()
    async with (
        SourceDiscovery(
            Faulty(store), client=MetadataClient(timeout=60.0, silence=SilenceTimings(wait=1.0, margin=60.0))
        ) as service,
        service.watch("prod", "decode", metadata=True) as stream,
    ):
        store.put(replace(gone.instance("bad"), port=1))
        store.put(worker.instance("good"))
        async with asyncio.timeout(90):
            assert (await anext(stream)).instance_id == "good"
        await eventually(lambda: caplog.records)
        await asyncio.sleep(0.3)  # several tries
    assert [record.getMessage() for record in caplog.records] == [
        "cannot follow the metadata of bad: unexpected error"
    ]


def reset_on_prefer(worker: FakeWorker) -> web.StreamResponse:
    request = worker.requests[-1]
    if "Prefer" in request.headers and request.transport is not None:
        request.transport.abort()
    return web.json_response({"n": 1}, headers={"ETag": '"a.b.1"'})


def refused_on_prefer(worker: FakeWorker) -> web.StreamResponse:
    if "Prefer" in worker.requests[-1].headers:
        return web.Response(status=500)
    return web.json_response({"n": 1}, headers={"ETag": '"a.b.1"'})


def unchanged_at_once(worker: FakeWorker) -> web.StreamResponse:
    return web.json_response({"n": 1}, headers={"ETag": '"a.b.1"', "Preference-Applied": "wait=10"})


def changing_without_etag_when_held(worker: FakeWorker) -> web.StreamResponse:
    held = "Prefer" in worker.requests[-1].headers
    headers = {} if held else {"ETag": f'"a.b.{len(worker.requests)}"'}
    return web.json_response({"n": len(worker.requests)}, headers=headers | {"Preference-Applied": "wait=10"})


def changing_for_ever(worker: FakeWorker) -> web.StreamResponse:
    count = len(worker.requests)
    return web.json_response(
        {"n": count}, headers={"ETag": f'"a.b.{count}"', "Preference-Applied": "wait=10"}
    )


@pytest.mark.parametrize(
    ("answer", "at_most"),
    [
        (reset_on_prefer, 7),
        (refused_on_prefer, 7),
        (unchanged_at_once, 7),
        (changing_without_etag_when_held, 9),
        (changing_for_ever, 10 + 8 + 3),
    ],
)
async def test_a_worker_that_does_not_hold_gets_is_polled(
    store: MemoryStore,
    discovering: SourceDiscovery,
    worker: FakeWorker,
    answer: Callable[[FakeWorker], web.StreamResponse],
    at_most: int,
) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return answer(worker)

    worker.handler = handler
    store.put(worker.instance())
    async with discovering.watch("prod", "decode", metadata=True) as stream:
        await anext(stream)
        begun = asyncio.get_running_loop().time()
        await asyncio.sleep(1.5)
        longer = asyncio.get_running_loop().time() - begun - 1.5
        assert len(worker.requests) <= at_most + 5 * longer, "one in 0.2 s at most"
        await eventually(lambda: len(worker.requests) >= 2)


async def test_an_invalid_entity_tag_does_not_stop_updates(
    store: MemoryStore, discovering: SourceDiscovery, worker: FakeWorker
) -> None:
    bodies: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        bodies.append(b'{"n": %d}' % (len(bodies) + 1))
        writer.write(
            b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nETag: "a\x01.b"\r\nConnection: close\r\n'
            b"Content-Length: %d\r\n\r\n%s" % (len(bodies[-1]), bodies[-1])
        )

    async with raw_server(answer) as port, discovering.watch("prod", "decode", metadata=True) as stream:
        store.put(replace(worker.instance(), port=port))
        assert (await anext(stream)).instance.revision is not None
        async with asyncio.timeout(90):
            updated = await anext(stream)
        assert await updated.instance.metadata() == {"n": 2}


async def test_entering_a_watch_with_metadata_does_not_wait_for_documents(
    store: MemoryStore, discovering: SourceDiscovery, worker: FakeWorker
) -> None:
    worker.handler = hang
    store.put(worker.instance())
    async with discovering.watch("prod", "decode", metadata=True) as stream:
        assert stream.health.state is WatchState.SYNCED
        assert stream.instances == {}
