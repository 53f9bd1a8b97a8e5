"""Watches with metadata over listed endpoints, which are added whatever they answer."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

import discovery
from discovery import InstanceAddedEvent, InstanceEventStream, InstanceUpdatedEvent
from tests.eventually import eventually
from tests.fake_worker import FakeWorker, hang, serving
from tests.free_port import free_port

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def says(status: int, body: bytes = b"<html>", **headers: str) -> Answer:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, body=body, headers={"Content-Type": "text/html"} | headers)

    return answer


async def cuts(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


ANSWERS = {
    "200 html": says(200),
    "204": says(204, b""),
    "302": says(302, Location="/login"),
    "400": says(400),
    "401": says(401),
    "403": says(403),
    "429": says(429),
    "500": says(500),
    "503": says(503),
    "more than 1 MiB": says(200, b"x" * (2 * 1024 * 1024)),
    "a list": says(200, b"[]", **{"Content-Type": "application/json"}),
    "hang": hang,
    "cut": cuts,
}


@asynccontextmanager
async def watching(*workers: FakeWorker, silent_after: float = 60.0) -> AsyncIterator[InstanceEventStream]:
    url = "static://" + ",".join(f"{worker.host}:{worker.port}" for worker in workers)
    async with (
        discovery.open(url, silent_after=silent_after) as service,
        service.watch("any", "thing", metadata=True) as stream,
    ):
        yield stream


async def next_event(stream: InstanceEventStream) -> discovery.InstanceEvent:
    async with asyncio.timeout(90):
        return await anext(stream)


@pytest.mark.parametrize("said", ANSWERS)
async def test_a_listed_worker_is_added_whatever_it_answers(said: str) -> None:
    worker = FakeWorker()
    worker.handler = ANSWERS[said]
    async with serving(worker), watching(worker) as stream:
        added = await next_event(stream)
        assert isinstance(added, InstanceAddedEvent)
        assert (added.instance.reachable, added.instance.revision) == (True, None)
        assert await added.instance.metadata() == {}


async def test_a_document_that_comes_later_is_an_update() -> None:
    worker = FakeWorker()
    worker.handler = says(401)
    async with serving(worker), watching(worker) as stream:
        await next_event(stream)
        worker.handler = worker.document
        updated = await next_event(stream)
        assert isinstance(updated, InstanceUpdatedEvent)
        assert await updated.instance.metadata() == {"model": {"name": "m"}}
        worker.handler = says(500)
        before = len(worker.requests)
        await eventually(lambda: len(worker.requests) >= before + 2)
        assert await stream.instances[updated.instance_id].metadata() == {"model": {"name": "m"}}
        assert stream.instances[updated.instance_id].reachable


async def test_a_document_that_comes_at_once_is_in_the_added_event() -> None:
    async with serving(FakeWorker()) as worker, watching(worker) as stream:
        added = await next_event(stream)
        assert await added.instance.metadata() == {"model": {"name": "m"}}


async def test_a_listed_worker_is_added_once_it_accepts_connections() -> None:
    worker = FakeWorker()
    worker.handler = says(401)
    worker.port = free_port()
    async with watching(worker) as stream:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await anext(stream)
        async with serving(worker):
            assert (await next_event(stream)).instance.reachable


async def test_a_listed_worker_that_stops_is_unreachable_until_it_returns() -> None:
    worker = FakeWorker()
    worker.handler = says(401)
    worker.port = free_port()
    async with serving(worker):
        stream_of = watching(worker)
        stream = await stream_of.__aenter__()
        assert (await next_event(stream)).instance.reachable
    assert not (await next_event(stream)).instance.reachable
    async with serving(worker):
        assert (await next_event(stream)).instance.reachable
    await stream_of.__aexit__(None, None, None)


async def test_a_listed_worker_that_never_answered_is_not_silent() -> None:
    worker = FakeWorker()
    worker.handler = hang
    async with serving(worker), watching(worker, silent_after=1.0) as stream:
        await next_event(stream)
        await eventually(lambda: len(worker.requests) >= 2)
        [instance] = stream.instances.values()
        assert instance.reachable


async def test_a_listed_worker_that_answered_and_falls_silent_is_unreachable() -> None:
    worker = FakeWorker()
    worker.handler = says(401)
    async with serving(worker), watching(worker, silent_after=1.0) as stream:
        await next_event(stream)
        worker.handler = hang
        assert not (await next_event(stream)).instance.reachable
        worker.handler = says(401)
        assert (await next_event(stream)).instance.reachable
