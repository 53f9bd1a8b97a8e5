"""What the worker side is tested with: a client, and contracts that are served for real."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

from registry.contract import Contract
from registry.document import PublishedDocument
from registry.server import ContractServer
from tests.registry.model_server import ModelServer, model_server

Serve = Callable[[Contract], Awaitable[str]]


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=90)) as session:
        yield session


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with model_server() as server:
        yield server


@pytest.fixture
def component(tmp_path: Path) -> Path:
    """A component's directory below a root."""
    path = tmp_path / "prod" / "decode"
    path.mkdir(parents=True)
    return path


@pytest.fixture
def document() -> PublishedDocument:
    return PublishedDocument.of("decode-1", "life1")


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """`await serve(contract)`: its URL, on a port of its own."""
    servers: list[ContractServer] = []

    async def started(contract: Contract) -> str:
        servers.append(ContractServer(contract, "127.0.0.1", 0))
        return f"http://127.0.0.1:{await servers[-1].start()}"

    yield started
    for server in servers:
        await server.aclose()
