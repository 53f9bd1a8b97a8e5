"""The places where workers and their watchers can meet. A new source joins the suite by one more line here."""

import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeAlias

import pytest

import discovery
import registry
from discovery import MetadataClient, SourceDiscovery
from discovery.metadata.silence import Silence
from registry import ServiceRegistry

OpenRegistry: TypeAlias = Callable[..., ServiceRegistry]


@pytest.fixture(params=["memory", "filesystem"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a registry announces and a discovery looks."""
    return {"memory": f"memory://{uuid.uuid4().hex}", "filesystem": f"file://{tmp_path}"}[request.param]


@pytest.fixture
def worker_host() -> str:
    """Where a worker may listen that is not ours."""
    return "127.0.0.1"


@pytest.fixture
async def service(url: str) -> AsyncIterator[SourceDiscovery]:
    client = MetadataClient(timeout=1.0, silence=Silence(wait=1.0))
    async with SourceDiscovery(discovery.opening.open_source(url), client=client) as opened:
        yield opened


@pytest.fixture
async def open_registry(url: str) -> AsyncIterator[OpenRegistry]:
    """`open_registry(**options)`: one more worker's registry at the meeting place; closed at the end."""
    opened: list[ServiceRegistry] = []

    def open_one(**options: object) -> ServiceRegistry:
        opened.append(registry.open(url, **options))  # type: ignore[arg-type]
        return opened[-1]

    yield open_one
    for one in opened:
        await one.aclose()
