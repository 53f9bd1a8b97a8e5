"""A mounted application says ready in its lifespan, before uvicorn listens: nobody who reads metadata is told too soon."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn

import discovery
import registry
from discovery import InstanceAddedEvent, InstanceEvent
from epp.endpoints.datastore import Datastore
from epp.endpoints.metadata_feed import follow_discovery
from registry.asgi import ContractApp
from tests.eventually import eventually


class Refusal:
    """What is on the port before uvicorn is: whoever asks is sent away, and counted."""

    def __init__(self) -> None:
        self.asked = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked += 1
        writer.transport.abort()


class Application:
    """As in docs/wire-contract.md, with a start that goes on for a while after `set_ready`."""

    def __init__(self, url: str, port: int) -> None:
        self.said_ready = asyncio.Event()
        self.start = asyncio.Event()
        contract = registry.Contract()

        import fastapi  # not while tests are collected

        @asynccontextmanager
        async def lifespan(app: fastapi.FastAPI) -> AsyncIterator[None]:
            workers = registry.open(url, port=port, contract=contract)
            async with workers.register_instance("dynamo", "decode") as worker:
                worker.set_metadata({"model": {"name": "m"}})
                worker.set_ready("ready")
                self.said_ready.set()
                await self.start.wait()
                yield

        app = fastapi.FastAPI(lifespan=lifespan)
        app.mount("/", ContractApp(contract))
        config = uvicorn.Config(
            app, host="127.0.0.1", port=port, log_level="warning", ws="none", timeout_graceful_shutdown=1
        )
        self.server = uvicorn.Server(config)


async def test_who_reads_metadata_is_told_of_a_worker_once_it_answers(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    refusal, store = Refusal(), Datastore()
    before = await asyncio.start_server(refusal, "127.0.0.1", 0)
    application = Application(url, before.sockets[0].getsockname()[1])
    told: list[InstanceEvent] = []

    async def events(stream: discovery.InstanceEventStream) -> AsyncIterator[InstanceEvent]:
        async for event in stream:
            told.append(event)
            yield event

    async with discovery.open(url) as service, service.watch("dynamo", "decode", metadata=True) as stream:
        picker = asyncio.create_task(follow_discovery(events(stream), store))
        serving = asyncio.create_task(application.server.serve())
        async with asyncio.timeout(90):
            await application.said_ready.wait()
            async with service.watch("dynamo", "decode") as plain:
                # who reads none is told at once
                assert isinstance(await anext(aiter(plain)), InstanceAddedEvent)
            await eventually(lambda: refusal.asked >= 3)
            assert told == []
            assert store.endpoints == ()
            before.close()
            application.start.set()
            await eventually(lambda: store.endpoints)
        [event] = told
        assert isinstance(event, InstanceAddedEvent)
        assert event.instance.reachable
        assert [(endpoint.models, endpoint.reachable) for endpoint in store.endpoints] == [({"m"}, True)]
        application.server.should_exit = True
        await serving
        picker.cancel()
        await asyncio.wait({picker})
