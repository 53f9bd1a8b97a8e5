"""Fault catalogue, rows 34, 35 and 40: the workers behind the slices, asked for their metadata over real sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from aiohttp import web

from discovery import (
    InstanceAddedEvent,
    InstanceRemovedEvent,
    InstanceUpdatedEvent,
    MetadataClient,
    MetadataUnavailableError,
)
from discovery.kubernetes import Cluster, ClusterTransport
from discovery.metadata.silence import SilenceTimings
from tests.fake_worker import FakeWorker, Handler, hang, serving
from tests.kubernetes.fake.api_server import FakeApiServer
from tests.kubernetes.fake.event_recorder import EventRecorder, recording_events
from tests.kubernetes.fake.objects import endpoint, endpoint_slice
from tests.kubernetes.fake.world import World, within


class Workers:
    """Real servers on loopback; each has a slice of its own, since its port is its own."""

    def __init__(self, server: FakeApiServer, stack: AsyncExitStack) -> None:
        self.world = World(server.api)
        self._server = server
        self._stack = stack

    async def start(self, name: str, handler: Handler | None = None) -> FakeWorker:
        worker = FakeWorker()
        if handler is not None:
            worker.handler = handler
        await self._stack.enter_async_context(serving(worker))
        self.show(name, worker)
        return worker

    def show(self, name: str, worker: FakeWorker, uid: str | None = None) -> None:
        """Its slice, as after a change of the pod."""
        shown = endpoint("127.0.0.1", name, uid)
        self.world.api.put("endpointslices", endpoint_slice(f"of-{name}", shown, ports={"http": worker.port}))

    def hide(self, name: str) -> None:
        self.world.log.delete("endpointslices", "default", f"of-{name}")

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[EventRecorder]:
        client = MetadataClient(timeout=60.0, silence=SilenceTimings(wait=0.5, margin=60.0))
        transport = ClusterTransport(Cluster(self._server.url))
        async with (
            self.world.discovering(transport, grace=0.05, client=client) as discovery,
            recording_events(discovery, metadata=True) as recorder,
        ):
            yield recorder


@pytest.fixture
async def workers(server: FakeApiServer) -> AsyncIterator[Workers]:
    async with AsyncExitStack() as stack:
        yield Workers(server, stack)


async def test_row_40_a_slow_neighbour_keeps_nobody_waiting(workers: Workers) -> None:
    await workers.start("slow", hang)
    await workers.start("fast")
    async with workers.watching() as recorder:
        await within(1, lambda: recorder.names == {"fast"})
        assert await recorder.instances["fast"].metadata() == {"model": {"name": "m"}}


async def test_row_40_404_is_a_worker_without_a_document(workers: Workers) -> None:
    await workers.start("w", _status(404))
    async with workers.watching() as recorder:
        await within(1, lambda: recorder.names == {"w"})
        assert await recorder.instances["w"].metadata() == {}


async def test_row_40_500_until_the_document_is_there(workers: Workers) -> None:
    worker = await workers.start("w", _status(500))
    async with workers.watching() as recorder:
        begun = asyncio.get_running_loop().time()
        await asyncio.sleep(0.2)
        assert not recorder.names
        took = asyncio.get_running_loop().time() - begun
        assert len(worker.requests) <= 8 + took, "retries back off"
        worker.handler = worker.document
        await within(2, lambda: recorder.names == {"w"})


async def test_row_40_a_huge_document_is_refused(workers: Workers) -> None:
    huge = await workers.start("huge")
    huge.body = b'{"x": "' + b"x" * 2**21 + b'"}'
    await workers.start("other")
    async with workers.watching() as recorder:
        await within(1, lambda: recorder.names == {"other"})
        await asyncio.sleep(0.2)
        assert recorder.names == {"other"}


async def test_row_40_a_worker_that_refuses_comes_later(workers: Workers) -> None:
    worker = await workers.start("w")
    port, worker.port = worker.port, 1  # nobody listens there
    workers.show("w", worker)
    async with workers.watching() as recorder:
        await asyncio.sleep(0.2)
        assert not recorder.names
        worker.port = port
        workers.show("w", worker)
        await within(1, lambda: recorder.names == {"w"})


async def test_row_40_a_question_ends_with_its_instance(workers: Workers) -> None:
    """A held request is cancelled when the slice loses the pod."""
    ended = asyncio.Event()

    async def held(request: web.Request) -> web.Response:
        try:
            return await hang(request)
        finally:
            ended.set()

    worker = await workers.start("w", held)
    async with workers.watching():
        await within(1, lambda: worker.requests)
        ended.clear()
        workers.hide("w")
        async with asyncio.timeout(45):  # sooner than it would be given up
            await ended.wait()


async def test_row_40_a_thousand_at_once(workers: Workers) -> None:
    worker = await workers.start("w")
    worker.headers = {"ETag": '"one"'}  # whoever has the document says so: what is polled later is told apart
    crowd = [endpoint("127.0.0.1", f"p{i}") for i in range(1000)]
    async with workers.watching() as recorder:
        workers.world.api.put("endpointslices", endpoint_slice("crowd", *crowd, ports={"http": worker.port}))
        await within(40, lambda: len(recorder.names) == 1001)
        first = [request for request in worker.requests if "If-None-Match" not in request.headers]
        assert len(first) <= 1300, "one each, and few retries"


async def test_row_34_a_reborn_pod_is_asked_anew(workers: Workers) -> None:
    worker = await workers.start("w")
    worker.headers = {"Instance-Id": "w", "Instance-Incarnation": "uid-1"}
    workers.show("w", worker, "uid-1")
    async with workers.watching() as recorder:
        await within(1, lambda: recorder.uids == {"uid-1"})
        worker.headers = {"Instance-Id": "w", "Instance-Incarnation": "uid-2"}
        worker.body = b'{"model": {"name": "other"}}'
        workers.show("w", worker, "uid-2")
        await within(2, lambda: recorder.uids == {"uid-2"})
        kinds = [type(event) for _, event in recorder.events if not isinstance(event, InstanceUpdatedEvent)]
        assert kinds == [InstanceAddedEvent, InstanceRemovedEvent, InstanceAddedEvent]
        assert await recorder.instances["w"].metadata() == {"model": {"name": "other"}}


async def test_row_35_an_answer_of_another_pod_is_not_taken(workers: Workers) -> None:
    """Its address was given to another pod before the slice changed."""
    worker = await workers.start("w")
    worker.headers = {"Instance-Id": "somebody-else", "Instance-Incarnation": "uid-9"}
    async with workers.watching() as recorder:
        await within(1, lambda: worker.requests)
        await asyncio.sleep(0.2)
        assert not recorder.names
    async with workers.world.discovering() as discovery:
        (instance,) = await discovery.list_instances("dynamo", "decode")
        with pytest.raises(MetadataUnavailableError, match="somebody-else"):
            await instance.metadata()


def _status(code: int) -> Handler:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=code)

    return answer


async def test_after_a_watch_gap_nothing_stale_survives(workers: Workers) -> None:
    """While the API server is away a pod is replaced and another one deleted; both show when it is back."""
    first = await workers.start("a")
    gone = await workers.start("b")
    async with workers.watching() as recorder:
        await within(1, lambda: recorder.names == {"a", "b"})
        workers.world.log.forget()
        first.body = b'{"model": {"name": "new"}}'
        workers.show("a", first, "uid-a-2")
        workers.hide("b")
        workers.world.expire_watches()
        await within(3, lambda: recorder.uids == {"uid-a-2"})
        assert await recorder.instances["a"].metadata() == {"model": {"name": "new"}}
        before = len(gone.requests)
        await asyncio.sleep(0.3)
        assert len(gone.requests) == before
