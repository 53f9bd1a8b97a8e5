"""The contract inside a FastAPI application, served by a real uvicorn."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import uvicorn

from discovery.check import Verdict, check_contract
from discovery.instance import InstanceStatus
from registry.asgi import ContractApp
from registry.contract import Contract
from registry.document import PublishedDocument
from tests.eventually import eventually


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    server = uvicorn.Server(
        uvicorn.Config(
            app, host="127.0.0.1", port=0, log_level="warning", timeout_graceful_shutdown=2, ws="none"
        )
    )
    running = asyncio.create_task(server.serve())
    while not server.started:
        assert not running.done()
        await asyncio.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await running


@pytest.fixture
def contract(document: PublishedDocument) -> Contract:
    contract = Contract(max_held=2)
    contract.bind(document)
    return contract


def hold(document: PublishedDocument) -> dict[str, str]:
    return {"If-None-Match": document.current.etag, "Prefer": "wait=30"}


async def test_beside_the_applications_own_routes(
    contract: Contract, document: PublishedDocument, client: aiohttp.ClientSession
) -> None:
    import fastapi  # takes a quarter of a second, which each process that collects tests would spend

    app = fastapi.FastAPI()

    @app.get("/v1/models")
    async def models() -> dict[str, list[str]]:
        return {"data": []}

    app.mount("/worker", ContractApp(contract))
    app.mount("/", ContractApp(contract))
    document.set_status(InstanceStatus.READY)
    async with served(app) as url:
        findings = [finding async for finding in check_contract(url)]
        assert {finding.verdict for finding in findings} == {Verdict.OK}, findings
        for path, status in (
            ("/v1/models", 200),
            ("/worker/metadata", 200),
            ("/worker/", 404),
            ("/other", 404),
        ):
            async with client.get(url + path) as response:
                assert response.status == status, path


async def test_by_itself(
    contract: Contract, document: PublishedDocument, client: aiohttp.ClientSession
) -> None:
    document.set_metadata({"a": 1})
    async with served(ContractApp(contract)) as url:
        async with client.head(f"{url}/metadata") as response:
            assert response.headers["Content-Length"] == str(len(document.current.body))
            assert await response.read() == b""
        async with client.put(f"{url}/metadata", data=b"x") as response:
            assert (response.status, response.headers["Allow"]) == (405, "GET, HEAD")
        async with client.get(f"{url}/metadata", headers={"If-None-Match": "*"}) as response:
            assert (response.status, await response.read()) == (304, b"")


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_change_ends_held_gets_and_so_does_an_instance_that_leaves(
    leaves: bool, contract: Contract, document: PublishedDocument, client: aiohttp.ClientSession
) -> None:
    """So a server that stops is not kept by them."""
    async with served(ContractApp(contract)) as url:
        get = asyncio.create_task(client.get(f"{url}/metadata", headers=hold(document)))
        await eventually(lambda: contract.held == 1)
        contract.unbind() if leaves else document.set_metadata({"a": 1})
        async with await asyncio.wait_for(get, 90) as response:
            expected = ("draining", {}) if leaves else ("not_ready", {"a": 1})
            assert (response.headers["Instance-Status"], await response.json()) == expected


async def test_a_reader_that_goes_away_gives_its_held_get_back(
    contract: Contract, document: PublishedDocument, client: aiohttp.ClientSession
) -> None:
    async with served(ContractApp(contract)) as url:
        gets = [asyncio.create_task(client.get(f"{url}/metadata", headers=hold(document))) for _ in range(2)]
        await eventually(lambda: contract.held == 2)
        for get in gets:
            get.cancel()
        await eventually(lambda: contract.held == 0)


async def test_other_scopes() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("nothing to read")

    app = ContractApp(Contract())
    await app({"type": "websocket", "path": "/metadata"}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1000}]
    with pytest.raises(ValueError, match="'carrier-pigeon' is not a supported ASGI scope"):
        await app({"type": "carrier-pigeon"}, receive, send)
